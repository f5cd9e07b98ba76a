"""What the updates of one round say about each other: is one of them absurdly far?

A single update that is correct in form can still swamp the average. How far a site moves is known
when its update arrives, one number a site; whether that is too far is known when all have answered.
"""

import re
from collections.abc import Collection, Mapping
from math import fsum, sqrt
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec
from fedpref.federation import wire

# Of two, each is as likely as the other to be the one that is wrong.
_SMALLEST_COHORT = 3
_METRIC_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_NAMES_SHOWN = 3


def update_norm(
    flat: NDArray[np.float32], start: Mapping[str, NDArray[Any]], spec: AdapterSpec
) -> float:
    """Return how far an update moved: the L2 norm of all factors' difference to `start`.

    `flat` is the update as `pack` lays it out, `start` the adapter that the round began with. Taken
    in float64 tensor by tensor, so that no second adapter is held.
    """
    squares = []
    for key, place in spec.places.items():
        moved = np.subtract(flat[place], start[key].ravel(), dtype=np.float64)
        squares.append(float(np.dot(moved, moved)))
    return sqrt(fsum(squares))


def median_norm(norms: Mapping[str, float]) -> float | None:
    """Return the median of the sites' norms, or None where it says nothing.

    If at least half of the updates did not move at all, the median is taken over those that did.
    Fewer than three norms have no majority that could tell which one is wrong.
    """
    middle = _median(list(norms.values()))
    return middle or _median([norm for norm in norms.values() if norm > 0])


def refuse_far(norms: Mapping[str, float], multiple: float) -> dict[str, str]:
    """Return site → reason for updates that moved more than `multiple` times the median.

    `norms` are `update_norm` by site, of all accepted updates of a round. `multiple` is the run's
    `guards.norm-multiple`; 0 refuses nothing, and neither does a cohort without a `median_norm`.
    An update that hardly moved is never refused: a small site moves little.
    """
    middle = median_norm(norms)
    if not multiple or middle is None:
        return {}
    return {
        site: f"the update moved {norm:.3g}, more than guards.norm-multiple = {multiple:g} times "
        f"the round's median of {middle:.3g}"
        for site, norm in sorted(norms.items())
        if norm > multiple * middle
    }


class ExtraMetrics:
    """Notices metrics that a reply carries and nobody reads; says so once a site and run."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warning(self, site: str, reply: Message, known: Collection[str]) -> str | None:
        """Return what to warn of, or None if all metrics are `known` or the site was named before.

        A name is shown only if it is one word: a site could write anything.
        """
        extra = extra_metrics(reply, known)
        if not extra or site in self._warned:
            return None
        self._warned.add(site)
        shown = [name for name in extra if _METRIC_NAME.fullmatch(name)][:_NAMES_SHOWN]
        named = f" ({', '.join(shown)}{' …' if len(shown) < len(extra) else ''})" if shown else ""
        return f"site {site} sends {len(extra)} metrics that are not used{named}; they are dropped"


def extra_metrics(reply: Message, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of a reply's metrics, in any record, that are not `known`; sorted."""
    return tuple(
        sorted(
            name
            for record, metrics in wire.records(reply.content, MetricRecord).items()
            for name in metrics
            if record != wire.METRICS or name not in known
        )
    )


def _median(norms: Collection[float]) -> float | None:
    return median(norms) if len(norms) >= _SMALLEST_COHORT else None
