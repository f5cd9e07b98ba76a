"""What a strategy says about a round, as it stands in the round's record."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedpref.federation.wire import NUM_EXAMPLES

WEIGHTS = "weights"


def weights_by_site(
    metrics: Mapping[str, Any], sites: Sequence[str]
) -> dict[str, float | None] | None:
    """Return the weight of each site's update, or None if the strategy gave no list of them.

    `sites` are those whose updates it combined, in their order. A weight that is not finite becomes
    null.
    """
    weights = metrics.get(WEIGHTS)
    if not isinstance(weights, list) or len(weights) != len(sites):
        return None
    return {site: _json(float(weight)) for site, weight in zip(sites, weights, strict=True)}


def trace_by_site(metrics: Mapping[str, Any], sites: Sequence[str]) -> dict[str, Any]:
    """Return everything else that the strategy gave, as a JSON value.

    A list with one number a site becomes a mapping by site; what is not finite becomes null. The
    number of pairs is left out: it stands in the record already.
    """
    trace: dict[str, Any] = {}
    for name, value in metrics.items():
        if name == NUM_EXAMPLES or (name == WEIGHTS and weights_by_site(metrics, sites)):
            continue
        if isinstance(value, list):
            numbers = [_json(number) for number in value]
            by_site = len(numbers) == len(sites)
            trace[name] = dict(zip(sites, numbers, strict=True)) if by_site else numbers
        else:
            trace[name] = _json(value)
    return trace


def _json(number: float) -> float | None:
    return number if math.isfinite(number) else None
