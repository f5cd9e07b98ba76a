"""The updates of a round against each other: norms by hand, and who is refused for them."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from fake_site import SPEC, random_state
from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.adapter_state import initial_state, pack
from fedpref.federation import wire
from fedpref.federation.cohort_guards import (
    ExtraMetrics,
    extra_metrics,
    median_norm,
    refuse_far,
    update_norm,
)

A_KEY, B_KEY = SPEC.keys
NORM = st.floats(0, 1e30)
NORMS = st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), NORM, max_size=12)


# The norm of one update


def test_the_norm_by_hand() -> None:
    start = random_state(1)
    moved = {key: value.copy() for key, value in start.items()}
    start[A_KEY][0, 1], moved[A_KEY][0, 1] = 1.0, 4.0
    start[B_KEY][3, 1], moved[B_KEY][3, 1] = 2.0, -2.0
    assert update_norm(pack(moved, SPEC), start, SPEC) == 5.0
    assert update_norm(pack(start, SPEC), start, SPEC) == 0.0


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_norm_is_that_of_the_flat_difference(a: int, b: int) -> None:
    flat, start = pack(random_state(a), SPEC), random_state(b)
    plain = np.linalg.norm(flat.astype(np.float64) - pack(start, SPEC).astype(np.float64))
    assert update_norm(flat, start, SPEC) == pytest.approx(float(plain), rel=1e-14)


def test_small_steps_and_huge_values_keep_their_digits() -> None:
    # In float32 the first would vanish and the second overflow.
    start = {key: np.full_like(value, 1.0) for key, value in random_state(1).items()}
    step = np.float32(2.0**-23)
    flat = pack(start, SPEC) + step
    assert update_norm(flat, start, SPEC) == pytest.approx(math.sqrt(20) * 2.0**-23, rel=1e-12)
    huge = np.full(SPEC.parameter_count, 3e38, dtype=np.float32)
    assert update_norm(huge, start, SPEC) == pytest.approx(math.sqrt(20) * 3e38, rel=1e-6)


def test_the_norm_changes_nothing() -> None:
    flat, start = pack(random_state(1), SPEC), initial_state(SPEC, 1)
    before = flat.tobytes(), {key: value.tobytes() for key, value in start.items()}
    update_norm(flat, start, SPEC)
    assert (flat.tobytes(), {key: value.tobytes() for key, value in start.items()}) == before


# Which of them is too far


@pytest.mark.parametrize(
    ("norms", "refused"),
    [
        ({"a": 1.0, "b": 2.0, "c": 1e6}, ["c"]),
        ({"a": 1.0, "b": 1.0, "c": 10.0}, []),  # exactly ten times the median is not beyond it
        ({"a": 1.0, "b": 1.0, "c": 10.001}, ["c"]),
        ({"a": 1.0, "b": 3.0, "c": 19.9, "d": 20.1}, []),  # median 11.45
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 11.0, "e": 99.0}, ["d", "e"]),
        ({"a": 1e-9, "b": 1.0, "c": 1.0}, []),  # a site that hardly moved
        # One or two have no majority.
        ({}, []),
        ({"a": 1e30}, []),
        ({"a": 1.0, "b": 1e30}, []),
        # A median of 0 is no scale: then only those that moved are compared.
        ({"a": 0.0, "b": 0.0, "c": 0.0}, []),
        ({"a": 0.0, "b": 0.0, "c": 5.0}, []),
        ({"a": 0.0, "b": 1.0, "c": 1e6}, ["c"]),
        ({"a": 0.0, "b": 0.0, "c": 1.0, "d": 5.1}, ["d"]),  # median 0.5
        ({"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0, "e": 1.0, "f": 1e6}, ["f"]),
    ],
)
def test_who_is_too_far_by_hand(norms: Mapping[str, float], refused: list[str]) -> None:
    assert list(refuse_far(norms, 10.0)) == refused


def test_the_reason_holds_the_figures() -> None:
    assert refuse_far({"a": 1.0, "b": 2.0, "c": 1234.5}, 10.0) == {
        "c": "the update moved 1.23e+03, more than guards.norm-multiple = 10 times the round's "
        "median of 2"
    }


def test_zero_turns_the_comparison_off() -> None:
    assert refuse_far({"a": 1.0, "b": 1.0, "c": 1e30}, 0.0) == {}


@pytest.mark.parametrize(
    ("norms", "median"),
    [([1.0, 2.0, 9.0], 2.0), ([1.0, 2.0, 4.0, 9.0], 3.0), ([0.0, 0.0, 0.0], None), ([1.0], None)],
)
def test_the_median_by_hand(norms: list[float], median: float | None) -> None:
    assert median_norm({str(i): norm for i, norm in enumerate(norms)}) == median


@settings(deadline=None)
@given(NORMS, st.floats(1, 100))
def test_at_least_half_always_stay_and_only_the_farthest_go(
    norms: dict[str, float], multiple: float
) -> None:
    refused = refuse_far(norms, multiple)
    kept = [norm for site, norm in norms.items() if site not in refused]
    assert 2 * len(refused) <= len(norms)
    if refused:
        assert max(kept) < min(norms[site] for site in refused)
    assert refuse_far(dict(reversed(norms.items())), multiple) == refused


@settings(deadline=None)
@given(NORMS, st.integers(-40, 40), st.floats(1, 100))
def test_the_unit_does_not_matter(norms: dict[str, float], power: int, multiple: float) -> None:
    norms = {site: norm for site, norm in norms.items() if norm == 0 or norm > 1e-200}
    scaled = {site: norm * 2.0**power for site, norm in norms.items()}
    assert refuse_far(scaled, multiple).keys() == refuse_far(norms, multiple).keys()


# Metrics that nobody reads


def reply_with(metrics: dict[str, float], **records: dict[str, float]) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    content = {wire.METRICS: metrics, **records}
    return Message(
        RecordDict({name: MetricRecord(values) for name, values in content.items()}),
        dst_node_id=1,
        message_type="train",
    )


def test_extra_metrics_are_found_in_every_record() -> None:
    reply = reply_with({"num-examples": 3, "z": 1.0, "loss": 1.0}, more={"num-examples": 3})
    assert extra_metrics(reply, {wire.NUM_EXAMPLES}) == ("loss", "num-examples", "z")
    assert extra_metrics(reply_with({"num-examples": 3}), {wire.NUM_EXAMPLES}) == ()


def test_each_site_is_warned_of_once() -> None:
    extra = ExtraMetrics()
    known = {wire.NUM_EXAMPLES}
    good, odd = reply_with({"num-examples": 3}), reply_with({"num-examples": 3, "loss": 1.0})
    assert extra.warning("a", good, known) is None
    assert extra.warning("a", odd, known) == (
        "site a sends 1 metrics that are not used (loss); they are dropped"
    )
    assert extra.warning("a", odd, known) is None
    assert extra.warning("b", odd, known) is not None


def test_a_warning_shows_words_only_and_few_of_them() -> None:
    names = ["FINDINGS: the right lung", "a\nb", "x" * 99, "e", "d", "c", "b"]
    warning = ExtraMetrics().warning("a", reply_with(dict.fromkeys(names, 1.0)), ())
    assert warning == "site a sends 7 metrics that are not used (b, c, d …); they are dropped"
    hidden = ExtraMetrics().warning("a", reply_with({"the lung": 1.0}), ())
    assert hidden == "site a sends 1 metrics that are not used; they are dropped"
