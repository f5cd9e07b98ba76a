"""Weights by size, then by similarity, then equal: FedDRAW (arXiv:2609.05223; DESIGN 1.12).

The reputation of site k in round t of 0…T is R_k = γ_t·s_k + (1 − γ_t)·c_k, with s_k its share of
the pairs and c_k its similarity to the previous global adapter; its weight is
softmax_k(β_t·R_k). The source gives no closed form of β_t; `beta_schedule` is ours.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedpref.errors import AdapterError, ConfigError
from fedpref.federation.aggregation.inputs import check_lengths, name_of, normalised
from fedpref.federation.aggregation.layers import State, last_block, lora_layers, read_layer
from fedpref.federation.aggregation.low_rank import Floats, LowRank, combination, inner_products

Similarity = Literal["product", "factors", "update"]
Ablation = Literal["none", "inner", "outer"]

ETA: Final = 1.0
BETA_MAX: Final = 10.0
KAPPA: Final = 3.0


@dataclass(frozen=True)
class FedDrawOptions:
    """The settings of FedDRAW.

    `eta` is the rate of γ, `beta_max` and `kappa` height and bend of β, all ≥ 0. `similarity`:
    "product" compares ΔW = B·A, "factors" the factors themselves, "update" what the site changed in
    B·A. `whole_model` compares all layers instead of the last transformer block. `ablation` "inner"
    leaves only the inner schedule (β stays beta_max), "outer" only the outer one (γ stays 1).
    Raises ConfigError.
    """

    eta: float = ETA
    beta_max: float = BETA_MAX
    kappa: float = KAPPA
    similarity: Similarity = "product"
    whole_model: bool = False
    ablation: Ablation = "none"

    def __post_init__(self) -> None:
        for name in ("eta", "beta_max", "kappa"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} is {value!r}", why="it must be finite and ≥ 0")
        for name, known in (("similarity", get_args(Similarity)), ("ablation", get_args(Ablation))):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name} is {value!r}", fix=f"use one of {', '.join(known)}")


@dataclass(frozen=True)
class FedDrawTrace:
    """How the weights of one round came about; lists are in the order of the states.

    `sizes` are the shares of the pairs, `similarities` cosines in −1…1 (0 where one side is zero).
    A site without pairs has no reputation and no similarity (null) and the weight 0.
    """

    round: int
    gamma: float
    beta: float
    sizes: tuple[float, ...]
    similarities: tuple[float | None, ...]
    reputations: tuple[float | None, ...]
    weights: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON value."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def gamma_schedule(round_: int, eta: float) -> float:
    """Return γ_t = exp(−η·t): the part of the size in the reputation, 1 in round 0."""
    return math.exp(-eta * round_)


def beta_schedule(round_: int, last_round: int, *, beta_max: float, kappa: float) -> float:
    """Return β_t = β_max·(1 − exp(−κ(T−t)))/(1 − exp(−κT)), the inverse temperature *(ours)*.

    β_max in round 0, near it until late, exactly 0 in the last round T; with T = 0 the only round
    is the last one. κ → 0 is the straight line β_max·(T−t)/T.
    """
    left = last_round - round_
    if left == 0:
        return 0.0
    if kappa * last_round < 1e-9:  # the fraction below loses its digits, or is 0/0
        return beta_max * left / last_round
    return beta_max * math.expm1(-kappa * left) / math.expm1(-kappa * last_round)


def feddraw_weights(
    states: Sequence[State],
    previous: State,
    pair_counts: Sequence[int],
    *,
    round: int,
    last_round: int,
    eta: float = ETA,
    beta_max: float = BETA_MAX,
    kappa: float = KAPPA,
    similarity: Similarity = "product",
    whole_model: bool = False,
    ablation: Ablation = "none",
) -> NDArray[np.float64]:
    """Return the weights (K,) of the states, ≥ 0, summing to 1; see `feddraw_trace`."""
    options = FedDrawOptions(eta, beta_max, kappa, similarity, whole_model, ablation)
    trace = feddraw_trace(
        states, previous, pair_counts, round=round, last_round=last_round, options=options
    )
    return np.array(trace.weights, dtype=np.float64)


def feddraw_trace(
    states: Sequence[State],
    previous: State,
    pair_counts: Sequence[int],
    *,
    round: int,
    last_round: int,
    options: FedDrawOptions | None = None,
    sites: Sequence[str] = (),
) -> FedDrawTrace:
    """Return γ, β, sizes, similarities, reputations and weights of round `round` of 0…`last_round`.

    `states` and `previous` (the global adapter the sites trained from) hold PEFT's lora_A and
    lora_B; ranks may differ unless similarity is "factors", and scales unless it is "update".
    `pair_counts` are the distinct pairs trained, ≥ 0; a site with 0 is no participant. Only the
    compared layers are read.
    Raises AdapterError for states or counts, ConfigError for the round.
    """
    options = options or FedDrawOptions()
    if not 0 <= round <= last_round:
        raise ConfigError(f"round {round} of 0…{last_round} was asked for")
    check_lengths(states, pair_counts=pair_counts)
    sizes = normalised(pair_counts, sites)
    present: list[int] = np.flatnonzero(sizes).tolist()
    shares = sizes[present]

    gamma = 1.0 if options.ablation == "outer" else gamma_schedule(round, options.eta)
    beta = options.beta_max
    if options.ablation != "inner":
        beta = beta_schedule(round, last_round, beta_max=options.beta_max, kappa=options.kappa)
    similar = similarities(
        [states[k] for k in present],
        previous,
        shares,
        similarity=options.similarity,
        whole_model=options.whole_model,
        sites=[sites[k] for k in present] if sites else (),
    )
    reputations = gamma * shares + (1 - gamma) * similar
    weights = np.zeros_like(sizes)
    weights[present] = _softmax(beta * reputations)
    return FedDrawTrace(
        round=round,
        gamma=gamma,
        beta=beta,
        sizes=tuple(sizes.tolist()),
        similarities=_spread(similar, present, len(sizes)),
        reputations=_spread(reputations, present, len(sizes)),
        weights=tuple(weights.tolist()),
    )


def similarities(
    states: Sequence[State],
    previous: State,
    shares: NDArray[np.float64],
    *,
    similarity: Similarity = "product",
    whole_model: bool = False,
    sites: Sequence[str] = (),
) -> NDArray[np.float64]:
    """Return the cosine (K,) of each state with the reference, over the last block or all layers.

    "product" and "factors": with `previous`, over B·A or over the entries of A and B. "update":
    ΔW_k − ΔW_previous; since the same subtraction leaves nothing of `previous`, its reference is
    the mean update Σ shares_k·(ΔW_k − ΔW_previous) *(ours)*. No B·A is formed. A cosine with
    a zero side (B·A of the untrained adapter) is 0.
    """
    everyone = [previous, *states]
    names = ["the previous global", *sites] if sites else []
    layers = lora_layers(everyone, names)
    products: Floats = np.zeros(())
    for layer in layers if whole_model else last_block(layers):
        factors = read_layer(everyone, layer, names).factors
        if similarity == "factors":
            products = products + _factor_products(factors, layer.a, names)
        else:
            if similarity == "update":
                factors = _updates(factors)
            products = products + inner_products(factors)
    if products.ndim == 0:
        raise AdapterError("the adapters have no LoRA layer to compare")
    squares = np.diag(products)
    if similarity == "update":
        # products[i, j] = ⟨u_i, u_j⟩; the reference r = Σ_j shares_j·u_j is never formed.
        return _cosines(products @ shares, squares, float(shares @ products @ shares))
    return _cosines(products[0, 1:], squares[1:], float(squares[0]))


def _updates(factors: Sequence[LowRank]) -> tuple[LowRank, ...]:
    """Return B_k·A_k − B_0·A_0 of each k ≥ 1 as (B_k − B_0)·A_k + B_0·(A_k − A_0).

    At small learning rates this keeps the digits that a difference of inner products would lose.
    """
    rank = max(matrix.rank for matrix in factors)
    before, *after = [matrix.padded(rank) for matrix in factors]
    return tuple(
        combination(
            [LowRank(matrix.b - before.b, matrix.a), LowRank(before.b, matrix.a - before.a)], [1, 1]
        )
        for matrix in after
    )


def _factor_products(factors: Sequence[LowRank], key: str, names: Sequence[str]) -> Floats:
    for index, matrix in enumerate(factors):
        if matrix.rank != factors[0].rank:
            raise AdapterError(
                f"the ranks {matrix.rank} and {factors[0].rank} cannot be compared by factors",
                key=key,
                site=name_of(names, index),
                fix='use the similarity "product" or "update"',
            )
    rows = np.stack([np.concatenate([m.b.ravel(), m.a.ravel()]) for m in factors])
    return np.asarray(rows @ rows.T)


def _cosines(products: Floats, squares: Floats, reference: float) -> Floats:
    lengths = np.sqrt(np.maximum(squares, 0) * max(reference, 0))
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return np.clip(cosines, -1, 1)


def _softmax(values: Floats) -> Floats:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def _spread(values: Floats, places: Sequence[int], length: int) -> tuple[float | None, ...]:
    spread: list[float | None] = [None] * length
    for place, value in zip(places, values.tolist(), strict=True):
        spread[place] = value
    return tuple(spread)
