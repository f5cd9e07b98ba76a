"""Who trains in a round when only a fraction of the sites is asked. Pure.

Flower's strategies draw from the unseeded global generator and wait for nodes without a deadline;
here a draw is a function of the run's seed, the round and the sites' names, so that it is the same
in a resumed run and does not depend on who answered first.
"""

import hashlib
import math
from collections.abc import Iterable

from fedpref.config import RunConfig
from fedpref.errors import ConfigError, raise_all


def sample_sites(
    sites: Iterable[str], *, fraction: float, seed: int, round_: int, at_least: int = 1
) -> tuple[str, ...]:
    """Return the sites that are asked in a round, sorted by name; all of them for `fraction` 1.

    Each site draws a number, the SHA-256 of (seed, round, name), and the `sample_size` lowest are
    taken ("bottom-k" sampling, Cohen and Kaplan 2007): every set of that size is equally likely,
    rounds are independent, and a site that was not drawn may be absent without changing the others.
    """
    names = sorted(set(sites))
    size = sample_size(len(names), fraction=fraction, at_least=at_least)
    # The name last: it alone could hold the separator.
    drawn = sorted(
        names, key=lambda name: hashlib.sha256(f"asked:{seed}:{round_}:{name}".encode()).digest()
    )
    return tuple(sorted(drawn[:size]))


def sample_size(sites: int, *, fraction: float, at_least: int = 1) -> int:
    """Return how many of `sites` are asked: the nearest whole number to fraction·sites, half up.

    At least one, at least `at_least` (the quorum: a round that asks fewer could not close), and at
    most all. Raises ConfigError unless 0 < fraction ≤ 1.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(
            f"{fraction!r} was given", key="fraction", fix="use a value > 0 and at most 1"
        )
    nearest = math.floor(fraction * sites + 0.5)
    return min(sites, max(nearest, at_least, 1))


def check_site_count(config: RunConfig, sites: int) -> None:
    """Raise ConfigError, or both problems, if quorum or min-sites is above the number of sites."""
    raise_all(
        [
            ConfigError(
                f"{key} = {value} is larger than the number of sites, {sites}",
                fix=f"lower {key}, or use more sites",
                key=key,
            )
            for key, value in (("quorum", config.quorum), ("min-sites", config.min_sites))
            if value > sites
        ]
    )
