"""The weighted mean of adapter states."""

import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpref.adapter_state import state_digest
from fedpref.errors import AdapterError
from fedpref.federation.aggregation import WeightedFold, weighted_mean

FLOATS = st.floats(-1e3, 1e3, width=32)
STATES = st.lists(
    st.fixed_dictionaries(
        {
            "a.lora_A.weight": arrays(np.float32, (2, 3), elements=FLOATS),
            "a.lora_B.weight": arrays(np.float32, (4, 2), elements=FLOATS),
        }
    ),
    min_size=1,
    max_size=5,
)
COUNTS = st.integers(1, 100_000)


def one(*values: float) -> dict[str, np.ndarray]:
    return {"a": np.array(values, dtype=np.float32)}


def test_by_hand() -> None:
    # B1: .25·1 + .75·3 = 2.5
    assert weighted_mean([one(1), one(3)], [0.25, 0.75])["a"].tolist() == [2.5]
    # (717·1 + 591·2) / 1308
    result = weighted_mean([one(1), one(2)], [717, 591])["a"]
    assert result.tolist() == [np.float32(1899 / 1308)]
    assert result.dtype == np.float32


@settings(deadline=None)
@given(STATES, st.data())
def test_agrees_with_numpy_in_float64(states: list, data: st.DataObject) -> None:
    weights = data.draw(st.lists(COUNTS, min_size=len(states), max_size=len(states)))
    mean = weighted_mean(states, weights)
    for key in states[0]:
        stack = np.stack([s[key].astype(np.float64) for s in states])
        np.testing.assert_allclose(
            mean[key], np.average(stack, axis=0, weights=weights), rtol=1e-6, atol=1e-6
        )


@settings(deadline=None)
@given(STATES, st.data())
def test_permuting_states_with_their_weights_changes_nothing(
    states: list, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(COUNTS, min_size=len(states), max_size=len(states)))
    order = data.draw(st.permutations(range(len(states))))
    mean = weighted_mean(states, weights)
    other = weighted_mean([states[i] for i in order], [weights[i] for i in order])
    for key, value in mean.items():
        # Sums of float64 in another order: at most the last bit of the float32 result.
        np.testing.assert_array_max_ulp(value, other[key], maxulp=1)


@settings(deadline=None)
@given(STATES, st.lists(COUNTS, min_size=1, max_size=6))
def test_identical_states_give_the_same_bits(states: list, weights: list[int]) -> None:
    mean = weighted_mean([states[0]] * len(weights), weights)
    assert state_digest(mean) == state_digest(states[0])


@pytest.mark.parametrize("weights", [[1, 1], [0.1, 0.2], [1 / 3, 2 / 3], [1e-9, 1e9]])
def test_identical_states_give_the_same_bits_for_fractions_and_signed_zeros(
    weights: list[float],
) -> None:
    state = one(0.1, -0.0, 0.0, -3.3e-30, 1e-45, 3.4e38)
    assert state_digest(weighted_mean([state, state], weights)) == state_digest(state)


@settings(deadline=None)
@given(STATES)
def test_scaling_all_weights_changes_nothing(states: list) -> None:
    weights = list(range(1, len(states) + 1))
    small, large = weighted_mean(states, weights), weighted_mean(states, [8 * w for w in weights])
    assert state_digest(small) == state_digest(large)


@settings(deadline=None)
@given(STATES)
def test_one_site_split_in_two_with_the_same_pairs_gives_the_same_mean(states: list) -> None:
    weights = list(range(2, len(states) + 2))
    split = weighted_mean([states[0], *states], [1, weights[0] - 1, *weights[1:]])
    for key, value in weighted_mean(states, weights).items():
        np.testing.assert_array_max_ulp(value, split[key], maxulp=1)


def test_a_weight_of_zero_adds_nothing() -> None:
    assert weighted_mean([one(1), one(9)], [2, 0])["a"].tolist() == [1]


def test_the_inputs_are_not_changed() -> None:
    states = [one(1), one(3)]
    weighted_mean(states, [1, 1])
    assert [s["a"].tolist() for s in states] == [[1], [3]]


def test_keys_come_back_sorted() -> None:
    state = {"b": np.ones(1, np.float32), "a": np.ones(1, np.float32)}
    assert list(weighted_mean([state], [1])) == ["a", "b"]


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([one(1), one(2)], [0, 0], "none of 2 states has a weight"),
        ([], [], "none of 0 states"),
        ([one(1)], [1, 2], "1 states and 2 weights"),
        ([one(1)], [-1], "weight"),
        ([one(1)], [float("nan")], "weight"),
        ([one(1)], [float("inf")], "weight"),
        ([one(1), {"b": np.ones(1)}], [1, 1], "key a: state 1 lacks"),
        ([one(1), {**one(1), "b": np.ones(1)}], [1, 1], "key b: state 1 alone has"),
        ([one(1), one(1, 2)], [1, 1], r"key a: state 1 has shape \(2,\), the first one \(1,\)"),
        ([one(1), one(1, 2)], [1, 0], "key a"),
    ],
)
def test_what_cannot_be_averaged_is_refused(states: list, weights: list, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        weighted_mean(states, weights)


@settings(deadline=None)
@given(STATES, st.data())
def test_the_fold_and_the_mean_of_a_sequence_give_the_same_bits(
    states: list, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(COUNTS, min_size=len(states), max_size=len(states)))
    fold = WeightedFold()
    for state, weight in zip(states, weights, strict=True):
        fold.add(state, weight)
    assert state_digest(fold.mean()) == state_digest(weighted_mean(states, weights))


def test_the_fold_holds_one_sum_whatever_the_number_of_states() -> None:
    fold = WeightedFold()
    for i in range(50):
        fold.add(one(i), 1)
    assert sum(value.size for value in fold._sums.values()) == 1
    assert fold.mean()["a"].tolist() == [24.5]


def test_the_mean_empties_the_fold() -> None:
    fold = WeightedFold()
    fold.add(one(3), 1)
    fold.mean()
    assert not fold._sums
    with pytest.raises(AdapterError, match="none of 0 states"):
        fold.mean()
    fold.add({"b": np.ones(2)}, 1)
    assert fold.mean()["b"].tolist() == [1, 1]


def test_large_strided_and_scalar_tensors_are_summed_whole() -> None:
    rng = np.random.default_rng(0)
    shapes = {"large": (3, 70_001), "block": (65_536,), "none": (0, 4), "scalar": ()}
    states = [
        {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
        for _ in range(3)
    ]
    for state in states:
        state["turned"] = state["large"].T
    mean = weighted_mean(states, [1, 2, 5])
    for key in states[0]:
        stack = np.stack([state[key].astype(np.float64) for state in states])
        expected = np.average(stack, axis=0, weights=[1, 2, 5]).astype(np.float32)
        assert mean[key].shape == states[0][key].shape
        np.testing.assert_array_max_ulp(mean[key], expected, maxulp=1)


class ReadOnce(Mapping):
    """A state that makes each tensor when it is asked for, and counts how many are alive."""

    alive: set[int] = set()  # noqa: RUF012
    most = 0

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b", "c"])

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> np.ndarray:
        self.reads.append(key)
        array = np.full(4, self.value, np.float32)
        name = id(array)
        ReadOnce.alive.add(name)
        weakref.finalize(array, ReadOnce.alive.discard, name)
        ReadOnce.most = max(ReadOnce.most, len(ReadOnce.alive))
        return array


def test_states_that_read_when_asked_are_read_once_and_dropped() -> None:
    states = [ReadOnce(value) for value in range(5)]
    assert weighted_mean(states, [1] * 5)["c"].tolist() == [2] * 4
    assert [state.reads for state in states] == [["a", "b", "c"]] * 5
    fold = WeightedFold()
    fold.add(state := ReadOnce(1), 1)
    assert state.reads == ["a", "b", "c"]
    assert ReadOnce.most <= 2


@pytest.mark.parametrize("factor", ["A", "B"])
def test_different_ranks_are_refused_by_site_layer_and_rank(factor: str) -> None:
    key = f"base_model.model.layers.0.q_proj.lora_{factor}.weight"
    states = [
        {key: np.ones((rank, 3) if factor == "A" else (3, rank), np.float32)} for rank in (4, 8)
    ]
    with pytest.raises(AdapterError) as caught:
        weighted_mean(states, [1, 1], sites=["north", "south"])
    assert caught.value.site == "south"
    assert caught.value.key == key
    assert "equal ranks, not 8 and 4" in caught.value.why
    assert "svd" in caught.value.fix
    fold = WeightedFold()
    fold.add(states[0], 1, site="north")
    with pytest.raises(AdapterError, match="site south"):
        fold.add(states[1], 1, site="south")


def test_another_width_of_a_layer_is_not_called_a_rank() -> None:
    states = [{"x.lora_A.weight": np.ones((2, width), np.float32)} for width in (3, 4)]
    with pytest.raises(AdapterError) as caught:
        weighted_mean(states, [1, 1])
    assert caught.value.why == "plain averaging needs equal ranks and layers"
