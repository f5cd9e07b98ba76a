"""What a strategy raises, as an error that names it: it may be anybody's class."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedpref.errors import FedPrefError, RoundError


@contextmanager
def at_work(name: str, error: type[FedPrefError] = RoundError) -> Iterator[None]:
    """Turn what is raised inside into `error` naming the strategy; FedPref's own errors pass."""
    try:
        yield
    except FedPrefError:
        raise
    except Exception as raised:
        raise error(
            f"the strategy {name} failed", why=f"{type(raised).__name__}: {raised}"
        ) from raised
