"""What a teacher is: a frozen source of one completion per report."""

from collections.abc import Sequence
from typing import Protocol


class Teacher(Protocol):
    """A named, frozen extractor; the same text always gets the same completion.

    A teacher sees report texts and nothing else: the annotation orders candidates, it never
    enters one.
    """

    @property
    def name(self) -> str:
        """Return the name, which is also the stem of the candidates' file."""

    @property
    def digest(self) -> str:
        """Return a content hash of everything that decides the completions."""

    def extract(self, texts: Sequence[str]) -> list[str]:
        """Return one raw completion per report text, in order."""
