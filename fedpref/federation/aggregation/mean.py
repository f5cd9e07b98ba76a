"""The weighted mean of factors: FedAvg over LoRA states (DESIGN 1.8).

Averaging A and B apart is not averaging B·A; `svd` and `fedex` do that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterState
from fedpref.errors import AdapterError
from fedpref.federation.aggregation.inputs import (
    check_keys,
    check_lengths,
    check_weight,
    name_of,
    no_weight,
)

# Products are formed a block at a time: they stay in the processor's cache, and no tensor is ever
# held a third time.
_BLOCK: Final = 65_536


class WeightedFold:
    """The running sum Σ w_k·x_k in float64 of states that arrive one by one.

    The sum is divided once by Σ w_k and cast once. Equal states therefore give back the same bits,
    and the result depends on nothing but the states, the weights and their order. It holds one
    float64 state and reads one tensor of the added state at a time. After an error it is of no use.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float64]] = {}  # flat
        self._scratch = np.empty(_BLOCK, dtype=np.float64)
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._keys: tuple[str, ...] = ()
        self._total = 0.0
        self._count = 0

    def add(
        self, state: Mapping[str, NDArray[Any]], weight: float, *, site: str | None = None
    ) -> None:
        """Add one state; a weight of 0 adds nothing, but the state must fit all the same.

        Raises AdapterError naming the tensor, and the site if its name is given.
        """
        check_weight(weight, self._count, site)
        if self._count == 0:
            self._keys = tuple(sorted(state))
        check_keys(self._keys, state.keys(), self._count, site)
        for key in self._keys:
            self._add_tensor(key, state[key], float(weight), site)
        self._total += float(weight)
        self._count += 1

    def mean(self) -> AdapterState:
        """Return Σ w·x / Σ w per key (sorted), in the dtype of the first state.

        Empties the fold tensor by tensor, so that the sums and the result are never both whole.
        """
        if self._total <= 0:
            raise no_weight(self._count)
        total = self._total
        mean = {}
        for key in self._keys:
            sums = self._sums.pop(key)
            sums /= total
            mean[key] = sums.astype(self._dtypes[key]).reshape(self._shapes[key])
        self._total, self._count = 0.0, 0
        return mean

    def _add_tensor(self, key: str, array: NDArray[Any], weight: float, site: str | None) -> None:
        if self._count == 0:
            self._dtypes[key], self._shapes[key] = array.dtype, array.shape
        elif array.shape != self._shapes[key]:
            raise AdapterError(
                f"state {self._count} has shape {array.shape}, the first one {self._shapes[key]}",
                key=key,
                site=site,
                why=_why(key, array.shape, self._shapes[key]),
                fix="use one rank at every site, or a strategy that serves several: svd, fedex",
            )
        if weight == 0:
            return
        flat = np.ravel(array)  # a view, unless the array is strided
        if first := key not in self._sums:
            self._sums[key] = np.empty(flat.size, dtype=np.float64)
        sums = self._sums[key]
        for start in range(0, flat.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            target = sums[part]
            # The first product is the sum itself: 0 + product would turn -0.0 into 0.0.
            product = target if first else self._scratch[: target.size]
            product[...] = flat[part]
            product *= weight
            if not first:
                target += product


def weighted_mean(
    states: Sequence[Mapping[str, NDArray[Any]]],
    weights: Sequence[float],
    *,
    sites: Sequence[str] = (),
) -> AdapterState:
    """Return Σ w_k·x_k / Σ w_k factor-wise over the complete state (DESIGN 1.8).

    `states` map PEFT's adapter keys to arrays of equal shapes; `weights` (finite, ≥ 0, not all 0)
    are normalised inside. Summed in float64, cast once to the dtype of the first state: the bits of
    `WeightedFold`, one tensor of all states after the other. Raises AdapterError naming the tensor
    or the weight, and the site where `sites` are given.
    """
    check_lengths(states, weights=weights)
    keys = sorted(states[0]) if states else []
    for index, state in enumerate(states):
        check_keys(keys, state.keys(), index, name_of(sites, index))
    mean: AdapterState = {}
    # Without a tensor, the empty fold still looks at the weights.
    for names in [[key] for key in keys] or [[]]:
        fold = WeightedFold()
        for index, (state, weight) in enumerate(zip(states, weights, strict=True)):
            one = {key: state[key] for key in names}
            fold.add(one, float(weight), site=name_of(sites, index))
        mean |= fold.mean()
    return mean


def _why(key: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    for name, axis in ((".lora_A.", 0), (".lora_B.", 1)):  # where the rank stands
        matrices = name in key and len(found) == len(expected) == 2
        if matrices and found[1 - axis] == expected[1 - axis]:
            return f"plain averaging needs equal ranks, not {found[axis]} and {expected[axis]}"
    return "plain averaging needs equal ranks and layers"
