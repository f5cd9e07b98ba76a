"""The weighted mean of adapter states."""

import numpy as np
import pytest
from hypothesis import given
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


@given(STATES, st.data())
def test_agrees_with_numpy_in_float64(states: list, data: st.DataObject) -> None:
    weights = data.draw(st.lists(COUNTS, min_size=len(states), max_size=len(states)))
    mean = weighted_mean(states, weights)
    for key in states[0]:
        stack = np.stack([s[key].astype(np.float64) for s in states])
        np.testing.assert_allclose(
            mean[key], np.average(stack, axis=0, weights=weights), rtol=1e-6, atol=1e-6
        )


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


@given(STATES)
def test_scaling_all_weights_changes_nothing(states: list) -> None:
    weights = list(range(1, len(states) + 1))
    small, large = weighted_mean(states, weights), weighted_mean(states, [8 * w for w in weights])
    assert state_digest(small) == state_digest(large)


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


def test_the_fold_holds_one_sum_whatever_the_number_of_states() -> None:
    fold = WeightedFold()
    for i in range(50):
        fold.add(one(i), 1)
    assert fold.mean()["a"].tolist() == [24.5]
    assert sum(value.size for value in fold._sums.values()) == 1
