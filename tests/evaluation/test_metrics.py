"""Counts and scores against hand-worked numbers."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.evaluation.metrics import (
    EvaluationCounts,
    client_mean,
    disease_f1,
    false_positive_rate,
    micro_f1,
    pooled,
    preference_accuracy,
    projection_rate,
    strict_rate,
    summarise,
    truncation_rate,
    wilson_interval,
    worst_site,
)

COUNTS = EvaluationCounts(
    reports=10,
    tp=6,
    fp=2,
    fn=4,
    disease_tp=8,
    disease_fp=1,
    disease_fn=3,
    projected=9,
    strict=7,
    truncated=1,
    empty_targets=4,
    empty_with_prediction=1,
    pairs=5,
    pairs_preferred=3,
)


def test_micro_f1_by_hand() -> None:
    assert micro_f1(6, 2, 4) == pytest.approx(12 / 18)
    assert micro_f1(0, 3, 0) == 0.0
    assert micro_f1(0, 0, 3) == 0.0
    assert micro_f1(5, 0, 0) == 1.0


def test_micro_f1_without_positives_is_no_data() -> None:
    assert micro_f1(0, 0, 0) is None


def test_micro_f1_refuses_negative_counts() -> None:
    with pytest.raises(ValueError, match="negative"):
        micro_f1(1, -1, 0)


def test_rates_by_hand() -> None:
    assert disease_f1(COUNTS) == pytest.approx(16 / 20)
    assert projection_rate(COUNTS) == pytest.approx(0.9)
    assert strict_rate(COUNTS) == pytest.approx(0.7)
    assert truncation_rate(COUNTS) == pytest.approx(0.1)
    assert false_positive_rate(COUNTS) == pytest.approx(0.25)
    assert preference_accuracy(COUNTS) == pytest.approx(0.6)


def test_rates_without_data_are_none() -> None:
    nothing = EvaluationCounts()
    for rate in (
        disease_f1,
        projection_rate,
        strict_rate,
        truncation_rate,
        false_positive_rate,
        preference_accuracy,
    ):
        assert rate(nothing) is None


def test_wilson_interval_by_hand() -> None:
    # z² = 3.8415; at 0 of n the interval is [0, z²/(n + z²)], at n of n its mirror image.
    assert wilson_interval(0, 20) == pytest.approx((0.0, 3.8415 / 23.8415), abs=1e-5)
    assert wilson_interval(20, 20) == pytest.approx((20 / 23.8415, 1.0), abs=1e-5)
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 0) is None
    with pytest.raises(ValueError, match="21 of 20"):
        wilson_interval(21, 20)


def test_site_aggregates_leave_out_sites_without_data() -> None:
    assert client_mean([0.6, None, 0.8]) == pytest.approx(0.7)
    assert worst_site([0.6, None, 0.8]) == 0.6
    assert client_mean([None, None]) is None
    assert worst_site([]) is None


def test_summary_pools_counts_and_means_sites() -> None:
    small = EvaluationCounts(reports=2, tp=1, fp=1, fn=0, disease_tp=1, projected=2)
    metrics = summarise({"a": COUNTS, "b": small, "c": EvaluationCounts(), "d": None})
    assert metrics.sites == {
        "a": pytest.approx(2 / 3),
        "b": pytest.approx(2 / 3),
        "c": None,
        "d": None,
    }
    assert metrics.client_mean == pytest.approx(2 / 3)
    assert metrics.worst_site == pytest.approx(2 / 3)
    assert metrics.pooled == pytest.approx(14 / 21)
    assert metrics.disease_client_mean == pytest.approx((0.8 + 1.0) / 2)
    assert metrics.disease_pooled == pytest.approx(18 / 22)
    assert metrics.projection_rate == pytest.approx(11 / 12)
    assert metrics.preference_accuracy == pytest.approx(0.6)
    assert metrics.total.reports == 12


def test_a_site_without_reports_is_never_zero() -> None:
    metrics = summarise({"a": EvaluationCounts(), "b": None})
    assert metrics.client_mean is None
    assert metrics.worst_site is None
    assert metrics.pooled is None


counts_strategy = st.builds(
    EvaluationCounts, **{f.name: st.integers(0, 10**9) for f in fields(EvaluationCounts)}
)


@given(st.lists(counts_strategy, max_size=5))
def test_pooling_adds_every_field(parts: list[EvaluationCounts]) -> None:
    total = pooled([*parts, None])
    for f in fields(EvaluationCounts):
        assert getattr(total, f.name) == sum(getattr(part, f.name) for part in parts)


def test_counts_travel_unchanged() -> None:
    assert EvaluationCounts.from_dict(json.loads(json.dumps(COUNTS.to_dict()))) == COUNTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 1.5}, "tp is not an integer"),
        ({"tp": True}, "tp is not an integer"),
        ({"fp": -1}, "fp is negative"),
        ({"projected": 11}, "projected is larger than reports"),
        ({"strict": 10}, "strict is larger than projected"),
        ({"truncated": 11}, "truncated is larger than reports"),
        ({"empty_targets": 11}, "empty_targets is larger than reports"),
        ({"empty_with_prediction": 5}, "empty_with_prediction is larger than empty_targets"),
        ({"pairs_preferred": 6}, "pairs_preferred is larger than pairs"),
        ({"extra": 1}, "1 unknown"),
    ],
)
def test_impossible_counts_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationCounts.from_dict(COUNTS.to_dict() | change)


def test_missing_counts_are_named() -> None:
    row = COUNTS.to_dict()
    del row["strict"]
    with pytest.raises(ValueError, match="missing strict"):
        EvaluationCounts.from_dict(row)
