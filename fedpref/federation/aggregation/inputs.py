"""What every way of combining states refuses: other keys, weights that are none, odd counts."""

import math
from collections.abc import Collection, Sequence, Sized

import numpy as np
from numpy.typing import NDArray

from fedpref.errors import AdapterError


def name_of(sites: Sequence[str], index: int) -> str | None:
    """Return the site of state `index`, or None where no sites are given (errors only)."""
    return sites[index] if index < len(sites) else None


def check_weight(weight: float, index: int, site: str | None = None) -> None:
    """Raise AdapterError unless the weight of state `index` is finite and ≥ 0."""
    if not math.isfinite(weight) or weight < 0:
        raise AdapterError(
            f"the weight {weight!r} was given to state {index}",
            why="a weight is a finite number ≥ 0",
            site=site,
        )


def check_keys(
    expected: Collection[str], found: Collection[str], index: int, site: str | None = None
) -> None:
    """Raise AdapterError naming the first tensor that only one of two key sets has."""
    if different := sorted(set(expected) ^ set(found)):
        side = "lacks" if different[0] in expected else "alone has"
        raise AdapterError(
            f"state {index} {side} this tensor",
            key=different[0],
            site=site,
            fix="average only adapters of one specification",
        )


def check_lengths(states: Sized, **others: Sized) -> None:
    """Raise AdapterError unless each of `others` is as long as `states`."""
    for name, values in others.items():
        if len(values) != len(states):
            raise AdapterError(f"{len(states)} states and {len(values)} {name} were given")


def no_weight(count: int) -> AdapterError:
    """Return the error for `count` states of which none has a weight above 0."""
    return AdapterError(
        f"none of {count} states has a weight above 0",
        why="a mean without weight is not defined",
        fix="skip the round and keep the previous adapter",
    )


def normalised(weights: Sequence[float], sites: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return weights / Σ weights (K,), float64; AdapterError unless finite, ≥ 0 and not all 0."""
    for index, weight in enumerate(weights):
        check_weight(float(weight), index, name_of(sites, index))
    values = np.asarray(weights, dtype=np.float64)
    total = float(values.sum())
    if total <= 0:
        raise no_weight(len(values))
    return np.asarray(values / total)
