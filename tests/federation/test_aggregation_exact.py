"""SVD and FedEx aggregation: what is served against Σ w·s·B·A, formed in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.adapter_state import AdapterSpec, initial_state, state_digest
from fedpref.errors import AdapterError
from fedpref.federation.aggregation import (
    concatenate,
    fedex_aggregate,
    svd_aggregate,
    weighted_mean,
)
from fedpref.federation.difference import encode_difference
from fedpref.federation.quantise import Format

# Non-square both ways, one with out or in below the sum of the ranks.
SHAPES = {"m.layers.0.q_proj": (4, 6), "m.layers.0.down": (31, 9), "m.layers.1.q_proj": (12, 40)}
State = dict[str, np.ndarray]


def make(rng: np.random.Generator, rank: int, dtype: type = np.float64) -> State:
    state = {}
    for name, (out, into) in SHAPES.items():
        state[f"{name}.lora_A.weight"] = rng.normal(size=(rank, into)).astype(dtype)
        state[f"{name}.lora_B.weight"] = rng.normal(size=(out, rank)).astype(dtype)
    return state


def product(state: State, name: str) -> np.ndarray:
    a, b = (state[f"{name}.lora_{factor}.weight"].astype(np.float64) for factor in "AB")
    return b @ a


def average(
    states: list[State], weights: list[float], scales: list[float], name: str
) -> np.ndarray:
    total = sum(weights)
    return sum(
        w / total * s * product(state, name)
        for state, w, s in zip(states, weights, scales, strict=True)
    )


@st.composite
def federations(draw: st.DrawFn) -> tuple[list[State], list[float], list[float]]:
    """States of one to five sites with ranks, alphas and rsLoRA of their own, and pair counts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ranks = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    alphas = [draw(st.sampled_from([1.0, 8.0, 16.0, 32.0])) for _ in ranks]
    rslora = draw(st.booleans())
    scales = [a / (math.sqrt(r) if rslora else r) for a, r in zip(alphas, ranks, strict=True)]
    weights = [float(draw(st.integers(1, 1000))) for _ in ranks]
    return [make(rng, rank) for rank in ranks], weights, scales


@settings(max_examples=40, deadline=None)
@given(federations())
def test_fedex_serves_the_exact_average(
    federation: tuple[list[State], list[float], list[float]],
) -> None:
    states, weights, scales = federation
    result = fedex_aggregate(states, weights, scales)
    whole = result.concatenated()
    for name in SHAPES:
        expected = average(states, weights, scales, name)
        apart = scales[0] * (product(result.mean, name) + product(result.residual, name))
        assert np.abs(apart - expected).max() <= 1e-10
        assert np.abs(scales[0] * product(whole, name) - expected).max() <= 1e-10
    ranks = [len(state["m.layers.0.q_proj.lora_A.weight"]) for state in states]
    assert len(result.residual["m.layers.0.q_proj.lora_A.weight"]) <= sum(ranks)
    assert len(whole["m.layers.0.down.lora_A.weight"]) <= sum(ranks) + max(ranks)


@settings(max_examples=40, deadline=None)
@given(federations(), st.integers(1, 8))
def test_the_error_of_svd_is_the_optimal_one(
    federation: tuple[list[State], list[float], list[float]], rank: int
) -> None:
    states, weights, scales = federation
    result = svd_aggregate(states, weights, scales, rank=rank)
    for name, (out, into) in SHAPES.items():
        expected = average(states, weights, scales, name)
        served = scales[0] * product(result, name)
        lost = np.linalg.svd(expected, compute_uv=False)[rank:]
        assert np.linalg.norm(expected - served) == pytest.approx(
            np.linalg.norm(lost), rel=1e-9, abs=1e-10
        )
        assert result[f"{name}.lora_A.weight"].shape == (rank, into)
        assert result[f"{name}.lora_B.weight"].shape == (out, rank)


@settings(max_examples=20, deadline=None)
@given(federations())
def test_svd_of_a_sufficient_rank_serves_the_exact_average(
    federation: tuple[list[State], list[float], list[float]],
) -> None:
    states, weights, scales = federation
    rank = sum(len(state["m.layers.0.q_proj.lora_A.weight"]) for state in states)
    result = svd_aggregate(states, weights, scales, rank=rank)
    for name in SHAPES:
        served = scales[0] * product(result, name)
        assert np.abs(served - average(states, weights, scales, name)).max() <= 1e-10


@settings(max_examples=20, deadline=None)
@given(federations(), st.sampled_from([0.5, 2.0, 8.0]), st.data())
def test_a_scale_may_be_given_and_the_order_of_sites_does_not_matter(
    federation: tuple[list[State], list[float], list[float]], scale: float, data: st.DataObject
) -> None:
    states, weights, scales = federation
    order = data.draw(st.permutations(range(len(states))))
    moved = [[values[k] for k in order] for values in (states, weights, scales)]
    for name in SHAPES:
        exact = fedex_aggregate(*moved, scale=scale).concatenated()
        expected = average(states, weights, scales, name)
        assert np.abs(scale * product(exact, name) - expected).max() <= 1e-10
        one = svd_aggregate(states, weights, scales, rank=25, scale=scale)
        other = svd_aggregate(*moved, rank=25, scale=scale)
        assert np.abs(scale * (product(one, name) - product(other, name))).max() <= 1e-10


@settings(max_examples=40, deadline=None)
@given(federations(), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_turning_towards_an_adapter_leaves_the_product_and_comes_nearest(
    federation: tuple[list[State], list[float], list[float]], rank: int, seed: int
) -> None:
    states, weights, scales = federation
    rng = np.random.default_rng(seed)
    near = make(rng, int(rng.integers(1, rank + 1)))
    plain = svd_aggregate(states, weights, scales, rank=rank)
    turned = svd_aggregate(states, weights, scales, rank=rank, near=near)

    def stacked(state: State, name: str) -> np.ndarray:
        both = np.vstack([state[f"{name}.lora_B.weight"], state[f"{name}.lora_A.weight"].T])
        return np.pad(both, ((0, 0), (0, rank - both.shape[1])))

    for name in SHAPES:
        assert np.abs(product(turned, name) - product(plain, name)).max() <= 1e-10
        found, goal = stacked(turned, name), stacked(near, name)
        distance = np.linalg.norm(found - goal)
        assert distance <= np.linalg.norm(stacked(plain, name) - goal) + 1e-9
        for _ in range(5):  # no other rotation comes nearer
            other, _ = np.linalg.qr(rng.normal(size=(rank, rank)))
            assert distance <= np.linalg.norm(found @ other - goal) + 1e-9


def test_an_unchanged_adapter_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(11)
    # Served before: of balanced factors, turned anyhow.
    before = svd_aggregate([make(rng, 3)], [1], [1.5], rank=3, near=make(rng, 3))
    again = svd_aggregate([before] * 3, [1, 2, 4], [1.5] * 3, rank=3, near=before)
    for key, value in before.items():
        np.testing.assert_allclose(again[key], value, atol=1e-12, err_msg=key)
    # Of a lower rank than asked for.
    wider = svd_aggregate([before] * 3, [1, 2, 4], [1.5] * 3, rank=5, near=before)
    np.testing.assert_allclose(
        wider["m.layers.0.down.lora_B.weight"][:, :3],
        before["m.layers.0.down.lora_B.weight"],
        atol=1e-12,
    )
    # Updates of another scale than the result's.
    doubled = {k: 2 * v if ".lora_B." in k else v for k, v in before.items()}
    halved = svd_aggregate([doubled], [1], [0.75], rank=3, scale=1.5, near=before)
    for key, value in before.items():
        np.testing.assert_allclose(halved[key], value, atol=1e-12, err_msg=key)
    with pytest.raises(AdapterError, match="`near` has rank 3, the result 2"):
        svd_aggregate([before], [1], [1], rank=2, near=before)
    with pytest.raises(AdapterError, match=r"site near, key x.lora_A"):
        svd_aggregate([lora()], [1], [1], rank=2, near=lora((2, 5)), sites=["a"])


@pytest.mark.parametrize("decay", [1.0, 0.6])
@pytest.mark.parametrize("format_", ["int8", "int4"])
def test_a_lossy_wire_costs_svd_no_more_than_plain_averaging(format_: Format, decay: float) -> None:
    """The error of the served product over the round's movement, four rounds at DPO's steps.

    Balanced factors that were drawn anew each round would be 5 to 16 times the movement off.
    """
    rank, counts = 8, [28, 22, 18, 14, 10, 8]
    shapes = {}
    for name, (out, into) in {"a": (96, 160), "b": (160, 96), "c": (128, 128)}.items():
        shapes |= {f"{name}.lora_A.weight": (rank, into), f"{name}.lora_B.weight": (out, rank)}
    spec = AdapterSpec(rank, 16.0, False, ("q",), tuple(shapes), tuple(shapes.values()))

    def errors(aggregate: Callable[[list[State], State], State]) -> list[float]:
        rng = np.random.default_rng(1)
        common = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
        shrink = {key: decay ** np.arange(rank, dtype=float) for key in shapes}
        start, found = initial_state(spec, 0), []
        for step in (2e-2, 3e-4, 3e-4, 3e-4):
            updates = []
            for _ in counts:
                update = {}
                for key, shape in shapes.items():
                    noise = common[key] + 0.3 * rng.standard_normal(shape)
                    each = shrink[key][:, None] if ".lora_A." in key else shrink[key]
                    update[key] = (start[key] + step * noise * each).astype(np.float32)
                updates.append(encode_difference(start, update, spec, format_)[1])
            made = aggregate(updates, start)
            given = encode_difference(start, made, spec, format_)[1]
            off, moved = (
                [product(state, n) - product(made, n) for n in "abc"] for state in (given, start)
            )
            found.append(np.sqrt(sum((x**2).sum() for x in off) / sum((x**2).sum() for x in moved)))
            start = given
        return found

    plain = errors(lambda updates, _: weighted_mean(updates, counts))
    turned = errors(
        lambda updates, start: svd_aggregate(
            updates, counts, [spec.scale] * 6, rank=rank, near=start
        )
    )
    for one, other in zip(turned, plain, strict=True):
        assert one <= 3 * other


def test_by_hand() -> None:
    # Site 1: s·B·A = 2·[[1, 0]ᵀ][1, 0, 0]; site 2: 1·[[0, 1]ᵀ][0, 3, 0]; weights 1/4 and 3/4.
    states = [
        {"x.lora_A.weight": np.array([[1.0, 0, 0]]), "x.lora_B.weight": np.array([[1.0], [0]])},
        {"x.lora_A.weight": np.array([[0.0, 3, 0]]), "x.lora_B.weight": np.array([[0.0], [1]])},
    ]
    # The average update is diag(.5, 2.25). Rank 1 keeps 2.25; with scale 2, B·A holds 1.125.
    best = svd_aggregate(states, [1, 3], [2, 1], rank=1)
    root = math.sqrt(1.125)
    np.testing.assert_allclose(best["x.lora_A.weight"], [[0, root, 0]], atol=1e-15)
    np.testing.assert_allclose(best["x.lora_B.weight"], [[0], [root]], atol=1e-15)
    # Means: B̄ = [.25, .75]ᵀ, Ā = [.25, 2.25, 0]; residual = diag(.25, 1.125) − B̄·Ā.
    result = fedex_aggregate(states, [1, 3], [2, 1])
    assert result.mean["x.lora_A.weight"].tolist() == [[0.25, 2.25, 0]]
    assert result.mean["x.lora_B.weight"].tolist() == [[0.25], [0.75]]
    np.testing.assert_allclose(
        product(result.residual, "x"),
        [[0.25 - 0.0625, -0.5625, 0], [-0.1875, 1.125 - 1.6875, 0]],
        atol=1e-15,
    )


def test_the_means_of_fedex_are_padded_where_ranks_differ() -> None:
    rng = np.random.default_rng(1)
    states = [make(rng, 2), make(rng, 3)]
    mean = fedex_aggregate(states, [1, 1], [1, 1]).mean
    key = "m.layers.0.down.lora_A.weight"
    np.testing.assert_allclose(mean[key][:2], (states[0][key] + states[1][key][:2]) / 2)
    np.testing.assert_allclose(mean[key][2], states[1][key][2] / 2)


def test_equal_ranks_and_scales_need_one_site_less_in_the_residual() -> None:
    rng = np.random.default_rng(2)
    states = [make(rng, 2) for _ in range(3)]
    result = fedex_aggregate(states, [3, 1, 2], [4, 4, 4])
    assert result.residual["m.layers.1.q_proj.lora_A.weight"].shape == (4, 40)


def test_equal_states_leave_no_residual_and_come_back_from_svd() -> None:
    state = make(np.random.default_rng(3), 3, np.float32)
    result = fedex_aggregate([state] * 3, [1, 2, 4], [2, 2, 2])
    assert state_digest(result.mean) == state_digest(state)
    assert result.residual["m.layers.0.down.lora_A.weight"].shape == (0, 9)
    assert result.residual["m.layers.0.down.lora_B.weight"].shape == (31, 0)
    assert state_digest(result.concatenated()) == state_digest(state)
    served = svd_aggregate([state] * 3, [1, 2, 4], [2, 2, 2], rank=3)
    np.testing.assert_allclose(
        product(served, "m.layers.0.down"), product(state, "m.layers.0.down"), atol=1e-5
    )
    # A residual without width is a state like any other.
    nothing = svd_aggregate([result.residual], [1], [2], rank=2)
    assert not any(value.any() for value in nothing.values())


def test_ranks_beyond_the_average_are_zeros_not_noise() -> None:
    state = make(np.random.default_rng(4), 2)
    result = svd_aggregate([state, state], [1, 1], [1, 1], rank=6)
    assert not result["m.layers.0.down.lora_A.weight"][2:].any()
    assert not result["m.layers.0.down.lora_B.weight"][:, 2:].any()


def test_an_untrained_state_gives_an_untrained_state() -> None:
    state = make(np.random.default_rng(5), 2)
    for name, (out, _) in SHAPES.items():
        state[f"{name}.lora_B.weight"] = np.zeros((out, 2))
    assert not any(value.any() for value in svd_aggregate([state], [1], [1], rank=2).values())


def test_signs_are_fixed_and_both_factors_carry_the_same_share() -> None:
    rng = np.random.default_rng(6)
    states = [make(rng, 2) for _ in range(2)]
    turned = [{key: -value for key, value in state.items()} for state in states]
    one, other = (svd_aggregate(s, [1, 2], [1, 1], rank=3) for s in (states, turned))
    for name in SHAPES:
        a, b = one[f"{name}.lora_A.weight"], one[f"{name}.lora_B.weight"]
        assert (a[np.arange(3), np.abs(a).argmax(axis=1)] > 0).all()
        np.testing.assert_allclose(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=0))
        np.testing.assert_allclose(a, other[f"{name}.lora_A.weight"], atol=1e-12)
    again = svd_aggregate(states, [1, 2], [1, 1], rank=3)
    assert state_digest(one) == state_digest(again)


def test_float32_stays_float32_and_sorted_and_a_weight_of_zero_adds_nothing() -> None:
    rng = np.random.default_rng(7)
    states = [make(rng, 2, np.float32), make(rng, 2, np.float32)]
    only = svd_aggregate(states, [1, 0], [2, 2], rank=2)
    expected = svd_aggregate(states[:1], [5], [2], rank=2)
    assert list(only) == sorted(states[0])
    assert {value.dtype for value in only.values()} == {np.dtype(np.float32)}
    assert state_digest(only) == state_digest(expected)
    exact = fedex_aggregate(states, [1, 0], [2, 2])
    assert {v.dtype for part in exact for v in part.values()} == {np.dtype(np.float32)}
    assert exact.residual["m.layers.0.down.lora_A.weight"].shape == (0, 9)


def test_an_adapter_name_in_the_keys_is_kept() -> None:
    state = {
        "x.lora_A.default.weight": np.ones((1, 2)),
        "x.lora_B.default.weight": np.ones((3, 1)),
    }
    assert list(svd_aggregate([state], [1], [1], rank=1)) == list(state)


def test_concatenated_adapters_add_up() -> None:
    rng = np.random.default_rng(8)
    states = [make(rng, rank) for rank in (1, 3, 2)]
    whole = concatenate(states)
    for name in SHAPES:
        expected = sum(product(state, name) for state in states)
        np.testing.assert_allclose(product(whole, name), expected, atol=1e-12)
    assert whole["m.layers.0.down.lora_B.weight"].shape == (31, 6)


def test_a_full_matrix_is_never_formed() -> None:
    side = 200_000  # a full matrix would take 298 GiB
    rng = np.random.default_rng(9)
    states = [
        {
            "x.lora_A.weight": rng.normal(size=(2, side)).astype(np.float32),
            "x.lora_B.weight": rng.normal(size=(side, 2)).astype(np.float32),
        }
        for _ in range(2)
    ]
    assert svd_aggregate(states, [1, 1], [1, 1], rank=2)["x.lora_A.weight"].shape == (2, side)
    residual = fedex_aggregate(states, [1, 1], [1, 1]).residual
    assert residual["x.lora_B.weight"].shape == (side, 2)


def lora(a: tuple[int, ...] = (2, 3), b: tuple[int, ...] = (4, 2), fill: float = 1.0) -> State:
    return {"x.lora_A.weight": np.full(a, fill), "x.lora_B.weight": np.full(b, fill)}


@pytest.mark.parametrize(
    ("states", "weights", "scales", "message"),
    [
        ([], [], [], "none of 0 states"),
        ([lora()], [0], [1], "none of 1 states has a weight"),
        ([lora()], [1, 2], [1], "1 states and 2 weights"),
        ([lora()], [1], [1, 2], "1 states and 2 scales"),
        ([lora()], [-1], [1], "a weight is a finite number"),
        ([lora(), lora()], [1, 1], [1, 0], "site south.*scale of state 1 is 0"),
        ([lora()], [1], [float("nan")], "scale of state 0 is nan"),
        ([lora(), {"y.lora_A.weight": np.ones(1)}], [1, 1], [1, 1], "site south, key x.lora_A"),
        ([lora(), lora((2, 5))], [1, 1], [1, 1], "site south, key x.lora_A.*shape"),
        ([lora(), lora((3, 3))], [1, 1], [1, 1], "site south, key x.lora_B.*two ranks"),
        ([lora(), lora(fill=math.inf)], [1, 1], [1, 1], "site south, key x.lora_A.*NaN"),
        ([lora((2, 3, 1))], [1], [1], "a LoRA factor is a matrix"),
        ([{"x.lora_A.weight": np.ones((2, 3))}], [1], [1], "other factor of this tensor"),
        ([{**lora(), "x.bias": np.ones(3)}], [1], [1], "key x.bias: .*neither"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    states: list, weights: list, scales: list, message: str
) -> None:
    sites = ["north", "south"][: len(states)]
    with pytest.raises(AdapterError, match=message):
        svd_aggregate(states, weights, scales, rank=2, sites=sites)
    with pytest.raises(AdapterError, match=message):
        fedex_aggregate(states, weights, scales, sites=sites)


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(AdapterError, match="rank 0"):
        svd_aggregate([lora()], [1], [1], rank=0)
