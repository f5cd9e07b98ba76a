"""The mean of the factors and what it misses, after FedEx-LoRA (arXiv:2410.09432)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpref.adapter_state import AdapterState
from fedpref.federation.aggregation.layers import LoraLayer, State, lora_layers, read_layer
from fedpref.federation.aggregation.low_rank import LowRank, best_approximation, combination
from fedpref.federation.aggregation.mean import weighted_mean
from fedpref.federation.aggregation.svd import coefficients


class FedExAggregate(NamedTuple):
    """Two adapters of one scale whose updates add up to the exact average.

    `mean` are the averaged factors, to be trained on; `residual` is to be kept frozen beside it.
    """

    mean: AdapterState
    residual: AdapterState

    def concatenated(self) -> AdapterState:
        """Return both as one adapter of the same scale; its rank is the sum of the two."""
        return concatenate([self.mean, self.residual])


def fedex_aggregate(
    states: Sequence[State],
    weights: Sequence[float],
    scales: Sequence[float],
    *,
    scale: float | None = None,
    sites: Sequence[str] = (),
) -> FedExAggregate:
    """Return the factor means B̄, Ā and the residual Σ w_k·s_k·B_k·A_k − scale·B̄·Ā as factors.

    `states` hold PEFT's lora_A (r_k, in) and lora_B (out, r_k); `weights` (finite, ≥ 0, not all 0)
    are normalised inside; `scales` are alpha/r, or alpha/sqrt(r) for rsLoRA. Where ranks differ,
    factors are padded with zeros to the highest before they are averaged (as HetLoRA does,
    arXiv:2401.06432); the residual then covers that too, so the served update is exact all the
    same.

    **Both results have the scale `scale`, by default that of the first state**: the served update
    is scale·(B̄·Ā + B_res·A_res). The residual has the lowest rank that is exact to rounding, one
    width for all layers, narrower ones padded with zeros: at most Σ r_k, and (K−1)·r where all
    ranks and scales are equal; 0 where all states are (shapes (0, in) and (out, 0)). float64
    inside, cast to the dtypes of the first state: in float32, the sum is exact to the rounding of
    the means. (A residual to the rounded means would hold that too, and have r ranks more.) One
    layer is read at a time, no full matrix is formed. Raises AdapterError naming tensor and site.
    """
    parts = coefficients(states, weights, scales, scale, sites)
    mean: AdapterState = {}
    residual: AdapterState = {}
    layers = lora_layers(states, sites)
    for layer in layers:
        found = read_layer(states, layer, sites)
        middle = _mean_factors(found.factors, weights)
        missed = best_approximation(combination([*found.factors, middle], [*parts.tolist(), -1.0]))
        for adapter, (b, a) in ((mean, middle), (residual, missed)):
            adapter[layer.a] = a.astype(found.dtype_a)
            adapter[layer.b] = b.astype(found.dtype_b)
    return FedExAggregate(dict(sorted(mean.items())), _one_width(residual, layers))


def add_residuals(before: State, more: State) -> AdapterState:
    """Return the sum of two residuals of one scale as a third, exact to rounding.

    They are stacked, so that the result begins with `before`, as long as the rank stays within the
    smaller side of every layer. Beyond that each layer gets its own lowest rank, one width for all.
    Raises AdapterError if the layers do not fit.
    """
    layers = lora_layers([before, more])
    smallest = min(min(before[layer.a].shape[1], len(before[layer.b])) for layer in layers)
    if sum(len(state[layers[0].a]) for state in (before, more)) <= smallest:
        return concatenate([before, more])
    total: AdapterState = {}
    for layer in layers:
        found = read_layer([before, more], layer)
        b, a = best_approximation(combination(found.factors, [1.0, 1.0]))
        total[layer.a], total[layer.b] = a.astype(found.dtype_a), b.astype(found.dtype_b)
    return _one_width(total, layers)


def concatenate(states: Sequence[State]) -> AdapterState:
    """Return one adapter whose B·A is the sum of those of `states`, all of one scale.

    A's are stacked by rows, B's by columns; the rank is the sum of the ranks. The dtypes are those
    numpy gives to mixed ones. Raises AdapterError if the layers do not fit.
    """
    result: AdapterState = {}
    for layer in lora_layers(states):
        read_layer(states, layer)  # refuses by name what would not stack
        result[layer.a] = np.concatenate([state[layer.a] for state in states], axis=0)
        result[layer.b] = np.concatenate([state[layer.b] for state in states], axis=1)
    return dict(sorted(result.items()))


def _one_width(residual: AdapterState, layers: Sequence[LoraLayer]) -> AdapterState:
    """Return the factors padded with zeros to the width of the widest layer, sorted by key."""
    width = max((len(residual[layer.a]) for layer in layers), default=0)
    padded: AdapterState = {}
    for layer in layers:
        more = width - len(residual[layer.a])
        padded[layer.a] = np.pad(residual[layer.a], ((0, more), (0, 0)))
        padded[layer.b] = np.pad(residual[layer.b], ((0, 0), (0, more)))
    return dict(sorted(padded.items()))


def _mean_factors(factors: Sequence[LowRank], weights: Sequence[float]) -> LowRank:
    rank = max(matrix.rank for matrix in factors)
    mean = weighted_mean([matrix.padded(rank)._asdict() for matrix in factors], weights)
    return LowRank(*(np.asarray(mean[name], dtype=np.float64) for name in ("b", "a")))
