"""The LoRA layers of adapter states: pairs of tensors A (r, in) and B (out, r), ΔW = scale·B·A."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpref.errors import AdapterError
from fedpref.federation.aggregation.inputs import check_keys, name_of
from fedpref.federation.aggregation.low_rank import LowRank

State = Mapping[str, NDArray[Any]]

# The names of PEFT: `….lora_A.weight`, with or without the adapter's name before the last part.
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(?P<rest>\..+)")
_BLOCK = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class LoraLayer:
    """One adapted module: its name and the keys of its two factors."""

    module: str
    a: str
    b: str

    @property
    def block(self) -> int | None:
        """The number of the transformer block (the first number in the name), if it has one."""
        found = _BLOCK.search(self.module)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class LayerFactors:
    """One layer of all states: float64 factors, and the dtypes of the first state."""

    factors: tuple[LowRank, ...]
    dtype_a: np.dtype[Any]
    dtype_b: np.dtype[Any]


def lora_layers(states: Sequence[State], sites: Sequence[str] = ()) -> tuple[LoraLayer, ...]:
    """Return the layers that all states have, sorted by name; no tensor is read.

    Raises AdapterError if there is no state, if keys differ between states, or if a tensor is no
    LoRA factor or lacks its other half (a product of factors is all that is combined here).
    """
    if not states:
        raise AdapterError("no state was given", fix="keep the previous adapter")
    for index, state in enumerate(states):
        check_keys(states[0].keys(), state.keys(), index, name_of(sites, index))
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    for key in sorted(states[0]):
        found = _FACTOR.fullmatch(key)
        if found is None:
            raise AdapterError(
                "the tensor is neither lora_A nor lora_B",
                key=key,
                why="only products B·A are combined exactly",
                fix="use plain averaging for adapters with other tensors",
            )
        pairs.setdefault((found["module"], found["rest"]), {})[found["factor"]] = key
    for pair in pairs.values():
        if len(pair) != 2:
            raise AdapterError("the other factor of this tensor is missing", key=min(pair.values()))
    return tuple(LoraLayer(name, pair["A"], pair["B"]) for (name, _), pair in sorted(pairs.items()))


def last_block(layers: Sequence[LoraLayer]) -> tuple[LoraLayer, ...]:
    """Return the layers of the highest numbered block, or all if none has a number."""
    numbers = [layer.block for layer in layers if layer.block is not None]
    return tuple(layer for layer in layers if not numbers or layer.block == max(numbers))


def read_layer(
    states: Sequence[State], layer: LoraLayer, sites: Sequence[str] = ()
) -> LayerFactors:
    """Return one layer of every state, each tensor read once; ranks may differ.

    Raises AdapterError naming tensor and site if a tensor is no matrix or not finite, if A and B
    disagree on the rank, or if in or out differ between states.
    """
    factors: list[LowRank] = []
    for index, state in enumerate(states):
        site = name_of(sites, index)
        raw_a, raw_b = state[layer.a], state[layer.b]
        if index == 0:
            dtype_a, dtype_b = raw_a.dtype, raw_b.dtype
        a, b = (np.asarray(raw, dtype=np.float64) for raw in (raw_a, raw_b))
        for key, array in ((layer.a, a), (layer.b, b)):
            if array.ndim != 2:
                raise AdapterError(
                    f"state {index} has shape {array.shape}",
                    why="a LoRA factor is a matrix",
                    key=key,
                    site=site,
                )
            if not np.isfinite(array).all():
                raise AdapterError(f"state {index} holds NaN or infinity", key=key, site=site)
        if a.shape[0] != b.shape[1]:
            raise AdapterError(
                f"state {index} has A {a.shape} and B {b.shape}, of two ranks",
                key=layer.b,
                site=site,
            )
        factors.append(LowRank(b, a))
        if factors[-1].shape != factors[0].shape:
            raise AdapterError(
                f"state {index} adapts a layer of shape {factors[-1].shape}, "
                f"the first one of {factors[0].shape}",
                key=layer.a,
                site=site,
                fix="every site must use the same base model",
            )
    return LayerFactors(tuple(factors), dtype_a, dtype_b)
