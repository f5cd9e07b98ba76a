"""What the coordinator asks of the sites for an effect between two arms, and what it is not asked.

The question names finished rounds by federation and adapter, so that a site finds the answers that
it kept. It names no number of draws and no minimum of patients: those are the site's to decide.
"""

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedpref.errors import RoundError
from fedpref.hashing import digest

MESSAGE_TYPE: Final = "query.effect"
# Draws of every site for every question: fewer would blur the interval, more would tell more.
DRAWS: Final = 10_000

# Fields and status of question and reply, beside those of `wire`.
QUESTION, REASON, TOTALS = "question", "reason", "totals"

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class AskedRound(_Strict):
    """A round of one run: `adapters` by site, `asked` is the run's `asked_digest`."""

    federation: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    round: int = Field(ge=0)
    asked: _Hash
    adapters: dict[str, _Hash]

    def label(self, site: str) -> str:
        """Return how the round is called in messages about a site."""
        adapter = self.adapters[site][:12]
        return f"round {self.round} of federation {self.federation}, adapter {adapter}"


class Question(_Strict):
    """The rounds of arm a and of arm b, as many of each: one a training seed."""

    a: Annotated[list[AskedRound], Field(min_length=1, max_length=100)]
    b: Annotated[list[AskedRound], Field(min_length=1, max_length=100)]

    @property
    def digest(self) -> str:
        """SHA-256 of the question: a reply names what it answers."""
        return digest(self.model_dump())

    @property
    def seeds(self) -> int:
        """The number of runs of each arm."""
        return len(self.a)

    def rounds(self) -> Iterable[AskedRound]:
        """Yield the rounds of arm a, then those of arm b."""
        yield from (*self.a, *self.b)

    @classmethod
    def read(cls, text: str) -> "Question":
        """Return the question of a message; RoundError if it is malformed."""
        try:
            question = cls.model_validate_json(text)
        except ValidationError:
            raise RoundError(
                "the question for an effect is malformed",
                fix="both ends must run the same fedpref version",
            ) from None
        if len(question.a) != len(question.b):
            raise RoundError(
                f"arm a has {len(question.a)} runs and arm b {len(question.b)}",
                why="the draws of both arms are averaged over as many seeds",
            )
        return question
