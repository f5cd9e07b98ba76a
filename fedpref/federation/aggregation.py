"""Averaging adapters: pure numpy over states (PEFT key → array), one running fold.

The server folds one site at a time, so that memory does not grow with the number of sites;
`weighted_mean` is the same fold over a sequence.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterState
from fedpref.errors import AdapterError


class WeightedFold:
    """The running sum Σ w_k·x_k in float64 of states that arrive one by one.

    The sum is divided once by Σ w_k and cast once. Equal states therefore give back the same bits,
    and the result depends on nothing but the states, the weights and their order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._total = 0.0
        self._count = 0

    def add(self, state: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Add one state; a weight of 0 adds nothing, but the state must fit all the same."""
        if not math.isfinite(weight) or weight < 0:
            raise AdapterError(
                f"the weight {weight!r} was given to state {self._count}",
                why="a weight is a finite number ≥ 0",
            )
        if self._count == 0:
            self._dtypes = {key: state[key].dtype for key in sorted(state)}
            self._shapes = {key: state[key].shape for key in sorted(state)}
        self._check(state)
        self._count += 1
        if weight == 0:
            return
        for key in self._dtypes:
            product = np.asarray(state[key], dtype=np.float64) * float(weight)
            if key in self._sums:
                self._sums[key] += product
            else:  # not 0 + product: that would turn -0.0 into 0.0
                self._sums[key] = product
        self._total += float(weight)

    def mean(self) -> AdapterState:
        """Return Σ w·x / Σ w per key (sorted), in the dtype of the first state."""
        if self._total <= 0:
            raise AdapterError(
                f"none of {self._count} states has a weight above 0",
                why="a mean without weight is not defined",
                fix="skip the round and keep the previous adapter",
            )
        return {
            key: (total / self._total).astype(self._dtypes[key])
            for key, total in self._sums.items()
        }

    def _check(self, state: Mapping[str, NDArray[Any]]) -> None:
        for key in sorted(state.keys() ^ self._dtypes.keys()):
            side = "lacks" if key in self._dtypes else "alone has"
            raise AdapterError(
                f"state {self._count} {side} this tensor",
                key=key,
                fix="average only adapters of one specification",
            )
        for key, shape in self._shapes.items():
            if state[key].shape != shape:
                raise AdapterError(
                    f"state {self._count} has shape {state[key].shape}, the first one {shape}",
                    key=key,
                    why="plain averaging needs equal ranks and layers",
                )


def weighted_mean(
    states: Sequence[Mapping[str, NDArray[Any]]], weights: Sequence[float]
) -> AdapterState:
    """Return Σ w_k·x_k / Σ w_k factor-wise over the complete state (DESIGN 1.8).

    `states` map PEFT's adapter keys to arrays of equal shapes; `weights` (finite, ≥ 0, not all 0)
    are normalised inside. Summed in float64, cast once to the dtype of the first state. Raises
    AdapterError naming the tensor or the weight.
    """
    if len(states) != len(weights):
        raise AdapterError(f"{len(states)} states and {len(weights)} weights were given")
    fold = WeightedFold()
    for state, weight in zip(states, weights, strict=True):
        fold.add(state, float(weight))
    return fold.mean()
