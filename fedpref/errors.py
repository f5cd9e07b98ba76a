"""The errors of FedPref: few classes, stable codes, one shape of message.

A message says what was given, why it cannot work and what to do. It never holds report text, an
annotation, a candidate or a patient id, so that any of these errors may be logged or sent.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

T = TypeVar("T")


class FedPrefError(Exception):
    """Base of all errors that FedPref raises on purpose; `code` is stable and documented."""

    code: ClassVar[str] = "FP000"

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        file: str | Path | None = None,
        line: int | None = None,
        site: str | None = None,
        key: str | None = None,
    ) -> None:
        self.what, self.why, self.fix = what, why, fix
        self.file, self.line, self.site, self.key = file, line, site, key
        super().__init__(self.message())

    def where(self) -> str:
        """Return the place as `site file:line key`, leaving out what is unknown."""
        file = None if self.file is None else str(self.file)
        if file is not None and self.line is not None:
            file = f"{file}:{self.line}"
        site = None if self.site is None else f"site {self.site}"
        key = None if self.key is None else f"key {self.key}"
        return ", ".join(part for part in (site, file, key) if part)

    def message(self) -> str:
        """Return `[code] where: what. why. fix.`, one line."""
        sentences = [s.strip().rstrip(".") for s in (self.what, self.why, self.fix) if s.strip()]
        place = self.where()
        said = " ".join(s if s.endswith(("?", "!")) else f"{s}." for s in sentences)
        return f"[{self.code}] {place + ': ' if place else ''}{said}"

    def __reduce__(self) -> tuple[object, ...]:
        # Ray moves exceptions between processes; the default would call __init__ with the message.
        return (_rebuild, (type(self), self.__dict__))


def _rebuild(kind: type[FedPrefError], state: dict[str, object]) -> FedPrefError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    Exception.__init__(error, error.message())
    return error


class ConfigError(FedPrefError):
    """A run configuration value, or a combination of them, cannot work."""

    code = "FP100"


class DataError(FedPrefError):
    """A file of a site directory, or a data source, is missing or malformed."""

    code = "FP200"


class ModelError(FedPrefError):
    """A base model, tokenizer or chat template cannot be used."""

    code = "FP300"


class AdapterError(FedPrefError):
    """An adapter state does not fit the adapter specification."""

    code = "FP400"


class TrainingError(FedPrefError):
    """Training cannot start or went wrong at a site."""

    code = "FP450"


class HandshakeError(FedPrefError):
    """The sites do not agree on what they would train."""

    code = "FP500"


class RoundError(FedPrefError):
    """A round cannot be closed."""

    code = "FP600"


class ResumeError(FedPrefError):
    """A run directory cannot be resumed with this configuration."""

    code = "FP700"


class FedPrefErrors(FedPrefError):
    """Several problems found at once; `errors` holds them, the message lists them."""

    def __init__(self, errors: Sequence[FedPrefError]) -> None:
        if not errors:
            raise ValueError("FedPrefErrors needs at least one error")
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in errors))
        self.code = errors[0].code  # type: ignore[misc]

    def message(self) -> str:
        """Return one line per problem."""
        return "\n".join(str(error) for error in self.errors)


@contextmanager
def of_site(name: str) -> Iterator[None]:
    """Name the site in what is raised inside, where the error itself names none."""
    try:
        yield
    except FedPrefError as error:
        for part in getattr(error, "errors", (error,)):
            part.site = part.site or name
        raise


def raise_all(errors: Sequence[FedPrefError]) -> None:
    """Raise the only error as it is, or several as one `FedPrefErrors`; return if there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise FedPrefErrors(errors)


def collected(problems: list[FedPrefError], step: Callable[[], T]) -> T | None:
    """Return what a step returns, or None with its errors added to `problems`."""
    try:
        return step()
    except FedPrefError as error:
        problems += getattr(error, "errors", (error,))
        return None
