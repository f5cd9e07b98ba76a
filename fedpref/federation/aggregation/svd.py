"""The best rank-r factors of the average update, after FlexLoRA (arXiv:2402.11505)."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterState
from fedpref.errors import AdapterError
from fedpref.federation.aggregation.inputs import check_lengths, name_of, normalised
from fedpref.federation.aggregation.layers import State, lora_layers, read_layer
from fedpref.federation.aggregation.low_rank import (
    best_approximation,
    combination,
    turned_towards,
)


def coefficients(
    states: Sequence[State],
    weights: Sequence[float],
    scales: Sequence[float],
    scale: float | None,
    sites: Sequence[str] = (),
) -> NDArray[np.float64]:
    """Return c_k = w_k·s_k / (scale·Σ w), (K,): scale·Σ c_k·B_k·A_k is the average update.

    `scale` None is the first of `scales`. Raises AdapterError for lengths, weights or scales that
    cannot work.
    """
    check_lengths(states, weights=weights, scales=scales)
    shares = normalised(weights, sites)
    for index, value in enumerate(scales):
        _check_scale(value, f"state {index}", name_of(sites, index))
    served = float(scales[0] if scale is None else scale)
    _check_scale(served, "the result", None)
    return shares * np.asarray(scales, dtype=np.float64) / served


def svd_aggregate(
    states: Sequence[State],
    weights: Sequence[float],
    scales: Sequence[float],
    *,
    rank: int,
    scale: float | None = None,
    near: State | None = None,
    sites: Sequence[str] = (),
) -> AdapterState:
    """Return the adapter of rank `rank` that is closest to Σ w_k·s_k·B_k·A_k in every layer.

    `states` hold PEFT's lora_A (r_k, in) and lora_B (out, r_k), ranks may differ between states;
    `weights` (finite, ≥ 0, not all 0) are normalised inside; `scales` are alpha/r, or
    alpha/sqrt(r) for rsLoRA.

    **The scale of the result is `scale`, by default that of the first state**: the served update is
    scale·B·A with B (out, rank), A (rank, in). So its alpha is scale·rank, or scale·sqrt(rank) for
    rsLoRA; with one rank and alpha everywhere nothing changes. Where the average has a lower rank
    than `rank`, the rest of both factors is zero, and the signs are fixed (`best_approximation`),
    both without `near`. The dtypes are those of the first state, the computation is in float64. No
    full matrix is formed, and one layer is read at a time.

    Many pairs of factors have one product. With `near`, an adapter of the result's scale and at
    most its rank, the pair is turned towards it (`turned_towards`): the product stays as it is, and
    factors move no more than they must, so that a difference to `near` is small where little has
    changed. Raises AdapterError naming tensor and site.
    """
    if rank < 1:
        raise AdapterError(f"rank {rank} was asked for", why="an adapter has at least rank 1")
    parts = coefficients(states, weights, scales, scale, sites)
    everyone = [*states, *([near] if near else [])]
    names = [*sites, "near"] if sites else ()
    result: AdapterState = {}
    for layer in lora_layers(everyone, names):
        found = read_layer(everyone, layer, names)
        updates, before = found.factors[: len(states)], found.factors[len(states) :]
        best = best_approximation(combination(updates, parts.tolist()), rank).padded(rank)
        for one in before:
            if one.rank > rank:
                raise AdapterError(f"`near` has rank {one.rank}, the result {rank}", key=layer.a)
            best = turned_towards(best, one.padded(rank))
        result[layer.a] = best.a.astype(found.dtype_a)
        result[layer.b] = best.b.astype(found.dtype_b)
    return dict(sorted(result.items()))


def _check_scale(value: float, whose: str, site: str | None) -> None:
    if not math.isfinite(value) or value <= 0:
        raise AdapterError(
            f"the scale of {whose} is {value!r}",
            why="a scale is alpha/r or alpha/sqrt(r), finite and above 0",
            site=site,
        )
