"""FedDRAW's schedules, similarities and weights, by hand and by their invariants."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.errors import AdapterError, ConfigError
from fedpref.federation.aggregation import (
    FedDrawOptions,
    FedDrawTrace,
    beta_schedule,
    feddraw_trace,
    feddraw_weights,
    gamma_schedule,
)

State = dict[str, np.ndarray]
SIMILARITIES = ["product", "factors", "update"]
SHAPES = [("q_proj", 5, 7), ("down", 9, 4)]


def make(rng: np.random.Generator, rank: int = 2, blocks: int = 11, prefix: str = "m") -> State:
    """Return an adapter of 11 blocks (a number of two digits is the last), plus a head."""
    state = {}
    for block in range(blocks):
        for name, out, into in SHAPES:
            module = f"{prefix}.layers.{block}.{name}"
            state[f"{module}.lora_A.weight"] = rng.normal(size=(rank, into))
            state[f"{module}.lora_B.weight"] = rng.normal(size=(out, rank))
    return state


def tiny(a: list[float], b: list[float]) -> State:
    """Return an adapter of one 2×2 layer and rank 1."""
    return {"x.lora_A.weight": np.array([a]), "x.lora_B.weight": np.array([b]).T}


def draws(
    states: list, previous: State, counts: list[int], t: int = 1, last: int = 3, **options: object
) -> np.ndarray:
    settings_ = {"eta": 1.0, "beta_max": 10.0, "kappa": 3.0, "similarity": "product"} | options
    return feddraw_weights(states, previous, counts, round=t, last_round=last, **settings_)


def trace(
    states: list, previous: State, counts: list[int], t: int = 1, **options: object
) -> FedDrawTrace:
    return feddraw_trace(
        states, previous, counts, round=t, last_round=3, options=FedDrawOptions(**options)
    )


def vector(state: State, similarity: str, last_only: bool) -> np.ndarray:
    """Return ΔW of the compared layers as one vector, formed in full, or the factors."""
    modules = sorted({key.split(".lora_")[0] for key in state})
    if last_only:
        modules = [name for name in modules if ".10." in name]
    parts = []
    for name in modules:
        a, b = state[f"{name}.lora_A.weight"], state[f"{name}.lora_B.weight"]
        parts += [b @ a] if similarity != "factors" else [a, b]
    return np.concatenate([part.ravel() for part in parts])


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def test_the_schedules_by_hand() -> None:
    assert [gamma_schedule(t, 1.0) for t in range(3)] == [1.0, math.exp(-1), math.exp(-2)]
    betas = [beta_schedule(t, 3, beta_max=10, kappa=3) for t in range(4)]
    bottom = 1 - math.exp(-9)
    expected = [10, 10 * (1 - math.exp(-6)) / bottom, 10 * (1 - math.exp(-3)) / bottom, 0]
    assert betas == pytest.approx(expected, abs=1e-12)
    assert betas[0] == 10  # exactly
    assert betas[3] == 0  # exactly
    # Without a bend it is a straight line; a federation of one round ends with its first.
    assert [beta_schedule(t, 4, beta_max=8, kappa=0) for t in range(5)] == [8, 6, 4, 2, 0]
    assert beta_schedule(0, 0, beta_max=10, kappa=3) == 0


@given(st.floats(0.01, 5), st.floats(0, 20), st.floats(0.1, 50), st.integers(1, 40))
def test_the_schedules_fall_and_the_outer_one_falls_late(
    eta: float, kappa: float, beta_max: float, last: int
) -> None:
    gammas = [gamma_schedule(t, eta) for t in range(last + 1)]
    betas = [beta_schedule(t, last, beta_max=beta_max, kappa=kappa) for t in range(last + 1)]
    for values in (gammas, betas):
        assert all(earlier >= later for earlier, later in pairwise(values))
    assert gammas[0] == 1
    assert betas[0] == pytest.approx(beta_max)
    assert betas[-1] == 0
    # Deferred: never below the straight line.
    lines = [beta_max * (last - t) / last for t in range(last + 1)]
    assert all(b >= line - 1e-9 * beta_max for b, line in zip(betas, lines, strict=True))


def test_a_round_by_hand() -> None:
    # ΔW: previous [[1, 0], [0, 0]]; site 1 the same ×3, site 2 [[1, 1], [0, 0]], site 3 orthogonal.
    previous = tiny([1, 0], [1, 0])
    states = [tiny([3, 0], [1, 0]), tiny([1, 1], [1, 0]), tiny([0, 1], [1, 0])]
    counts = [10, 30, 60]
    found = trace(states, previous, counts)
    similar = [1, 1 / math.sqrt(2), 0]
    gamma, beta = math.exp(-1), 10 * (1 - math.exp(-6)) / (1 - math.exp(-9))
    reputations = [
        gamma * s + (1 - gamma) * c for s, c in zip([0.1, 0.3, 0.6], similar, strict=True)
    ]
    powers = [math.exp(beta * value) for value in reputations]
    assert found.gamma == pytest.approx(gamma)
    assert found.beta == pytest.approx(beta)
    assert found.sizes == pytest.approx([0.1, 0.3, 0.6])
    assert found.similarities == pytest.approx(similar)
    assert found.reputations == pytest.approx(reputations)
    assert found.weights == pytest.approx([power / sum(powers) for power in powers])
    assert json.loads(json.dumps(found.to_dict()))["weights"] == list(found.weights)
    assert draws(states, previous, counts).tolist() == list(found.weights)


def test_updates_by_hand() -> None:
    # ΔW − previous: [[2, 0], [0, 0]] and [[0, 2], [0, 0]]; their mean by 1:3 is [[.5, 1.5], …].
    previous = tiny([1, 0], [1, 0])
    found = trace(
        [tiny([3, 0], [1, 0]), tiny([1, 2], [1, 0])], previous, [1, 3], similarity="update"
    )
    assert found.similarities == pytest.approx([0.5 / math.sqrt(2.5), 1.5 / math.sqrt(2.5)])


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("whole_model", [False, True])
def test_similarities_are_those_of_the_full_matrices(similarity: str, whole_model: bool) -> None:
    rng = np.random.default_rng(0)
    previous, *states = [make(rng) for _ in range(4)]
    # What the last block says is not what the others say.
    counts = [5, 1, 2]
    found = trace(states, previous, counts, similarity=similarity, whole_model=whole_model)
    before, *after = [vector(s, similarity, not whole_model) for s in [previous, *states]]
    reference = before
    if similarity == "update":
        after = [one - before for one in after]
        reference = sum(n / 8 * one for n, one in zip(counts, after, strict=True))
    assert found.similarities == pytest.approx([cosine(one, reference) for one in after], abs=1e-12)


def test_updates_keep_their_digits_at_small_learning_rates() -> None:
    rng = np.random.default_rng(1)
    previous = make(rng)
    steps = [make(rng), make(rng)]
    states = [{key: previous[key] + 1e-9 * step[key] for key in previous} for step in steps]
    found = trace(states, previous, [1, 1], similarity="update")
    # To first order, the change of B·A is dB·A + B·dA.
    changes = []
    for state in states:
        parts = []
        for key in sorted(k for k in previous if ".10." in k and ".lora_A." in k):
            other = key.replace("lora_A", "lora_B")
            parts.append((state[other] - previous[other]) @ previous[key])
            parts[-1] = parts[-1] + previous[other] @ (state[key] - previous[key])
        changes.append(np.concatenate([part.ravel() for part in parts]))
    mean = (changes[0] + changes[1]) / 2
    assert found.similarities == pytest.approx([cosine(c, mean) for c in changes], abs=1e-6)
    # The absolute cosines say nothing here.
    assert trace(states, previous, [1, 1]).similarities == pytest.approx([1, 1], abs=1e-12)


@pytest.mark.parametrize("similarity", ["product", "update"])
def test_ranks_may_differ_where_matrices_are_compared(similarity: str) -> None:
    rng = np.random.default_rng(2)
    previous, states = make(rng, 3), [make(rng, 2), make(rng, 4)]
    found = trace(states, previous, [1, 1], similarity=similarity)
    before, *after = [vector(s, similarity, True) for s in [previous, *states]]
    reference = before
    if similarity == "update":
        after = [one - before for one in after]
        reference = (after[0] + after[1]) / 2
    assert found.similarities == pytest.approx([cosine(one, reference) for one in after], abs=1e-12)


def test_another_basis_of_the_same_product_is_the_same_to_product_but_not_to_factors() -> None:
    rng = np.random.default_rng(3)
    previous, turn = make(rng), np.array([[2.0, 1.0], [0.0, 0.5]])
    turned = {
        key: turn @ value if ".lora_A." in key else value @ np.linalg.inv(turn)
        for key, value in previous.items()
    }
    assert trace([turned], previous, [1]).similarities == pytest.approx([1])
    (similar,) = trace([turned], previous, [1], similarity="factors").similarities
    assert similar is not None
    assert similar < 0.99


def test_only_the_last_block_is_read_unless_the_whole_model_is_asked_for() -> None:
    rng = np.random.default_rng(4)
    previous, one = make(rng), make(rng)
    other = {key: value if ".10." in key else value + 1 for key, value in one.items()}
    by_last = [trace([state], previous, [1]).similarities for state in (one, other)]
    assert by_last[0] == by_last[1]
    by_all = [trace([s], previous, [1], whole_model=True).similarities for s in (one, other)]
    assert by_all[0] != by_all[1]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(1, 1000), min_size=1, max_size=5),
    t=st.integers(0, 3),
    similarity=st.sampled_from(SIMILARITIES),
    whole_model=st.booleans(),
    beta_max=st.floats(0, 1000),
    data=st.data(),
)
def test_weights_sum_to_one_and_follow_their_sites(
    seed: int,
    counts: list[int],
    t: int,
    similarity: str,
    whole_model: bool,
    beta_max: float,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    previous, *states = [make(rng, blocks=2) for _ in range(len(counts) + 1)]
    options = {"similarity": similarity, "whole_model": whole_model, "beta_max": beta_max}
    weights = draws(states, previous, counts, t, **options)
    assert weights.shape == (len(counts),)
    assert weights.dtype == np.float64
    assert abs(weights.sum() - 1) <= 1e-12
    assert (weights >= 0).all()
    order = data.draw(st.permutations(range(len(counts))))
    moved = draws([states[k] for k in order], previous, [counts[k] for k in order], t, **options)
    np.testing.assert_allclose(moved, weights[list(order)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_last_round_is_exactly_uniform_and_the_first_by_sizes_only(similarity: str) -> None:
    rng = np.random.default_rng(5)
    previous, *states = [make(rng, blocks=1) for _ in range(4)]
    counts = [717, 591, 297]
    last = draws(states, previous, counts, 3, similarity=similarity)
    assert last.tolist() == [1 / 3] * 3
    powers = np.exp(10 * np.array(counts) / sum(counts))
    others = [make(rng, blocks=1) for _ in range(3)]
    for some in (states, others):
        first = draws(some, previous, counts, 0, similarity=similarity)
        np.testing.assert_allclose(first, powers / powers.sum(), rtol=1e-12)


def test_one_site_has_the_whole_weight_and_one_round_is_the_last() -> None:
    rng = np.random.default_rng(6)
    previous, one, two = (make(rng, blocks=1) for _ in range(3))
    for t in range(4):
        assert draws([one], previous, [3], t).tolist() == [1]
    assert draws([one, two], previous, [1, 99], 0, 0).tolist() == [0.5, 0.5]


def test_the_ablations_reproduce_their_definitions() -> None:
    previous = tiny([1, 0], [1, 0])
    states, counts = [tiny([3, 0], [1, 0]), tiny([0, 1], [1, 0])], [1, 3]
    similar, sizes = np.array([1.0, 0.0]), np.array([0.25, 0.75])
    for t in range(4):
        gamma, beta = math.exp(-t), beta_schedule(t, 3, beta_max=10, kappa=3)
        inner = np.exp(10 * (gamma * sizes + (1 - gamma) * similar))
        outer = np.exp(beta * sizes)
        found = [draws(states, previous, counts, t, ablation=name) for name in ("inner", "outer")]
        np.testing.assert_allclose(found[0], inner / inner.sum(), rtol=1e-12)
        np.testing.assert_allclose(found[1], outer / outer.sum(), rtol=1e-12)
        assert trace(states, previous, counts, t, ablation="inner").beta == 10
        assert trace(states, previous, counts, t, ablation="outer").gamma == 1


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_an_untrained_previous_adapter_is_like_nothing(similarity: str) -> None:
    rng = np.random.default_rng(7)
    previous, one, two = (make(rng, blocks=1) for _ in range(3))
    previous = {key: value * (".lora_A." in key) for key, value in previous.items()}
    found = trace([one, two], previous, [1, 1], 0, similarity=similarity)
    assert np.isfinite(found.similarities).all()
    if similarity == "product":
        assert found.similarities == (0, 0)
    unmoved = trace([previous, previous], previous, [1, 1], similarity="update")
    assert unmoved.similarities == (0, 0)
    assert unmoved.weights == (0.5, 0.5)


def test_a_site_without_pairs_has_no_weight_in_any_round() -> None:
    rng = np.random.default_rng(8)
    previous, one, two, three = (make(rng, blocks=1) for _ in range(4))
    for t in range(4):
        found = trace([one, two, three], previous, [5, 0, 7], t)
        without = trace([one, three], previous, [5, 7], t)
        assert found.weights == (without.weights[0], 0, without.weights[1])
        assert found.similarities[1] is None
        assert found.reputations[1] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": -1}, "eta is -1"),
        ({"beta_max": math.inf}, "beta_max is inf"),
        ({"kappa": math.nan}, "kappa is nan"),
        ({"similarity": "cosine"}, "similarity is 'cosine'.*product, factors, update"),
        ({"ablation": "both"}, "ablation is 'both'"),
        ({"t": 4}, "round 4 of 0…3"),
        ({"t": -1}, "round -1 of 0…3"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict, message: str) -> None:
    state = tiny([1, 0], [1, 0])
    with pytest.raises(ConfigError, match=message):
        draws([state], state, [1], **options)


def test_states_that_cannot_be_compared_are_refused_by_site() -> None:
    state, wide = tiny([1, 0], [1, 0]), make(np.random.default_rng(9), 3, blocks=1)
    with pytest.raises(AdapterError, match="2 states and 1 pair_counts"):
        draws([state, state], state, [1])
    with pytest.raises(AdapterError, match="none of 1 states"):
        draws([state], state, [0])
    with pytest.raises(AdapterError, match="no LoRA layer"):
        draws([{}], {}, [1])
    narrow = make(np.random.default_rng(9), 2, blocks=1)
    with pytest.raises(AdapterError, match=r"site south, key .*ranks 3 and 2") as caught:
        feddraw_trace(
            [narrow, narrow, wide],
            narrow,
            [1, 0, 1],
            round=1,
            last_round=3,
            options=FedDrawOptions(similarity="factors"),
            sites=["north", "away", "south"],
        )
    assert caught.value.site == "south"
