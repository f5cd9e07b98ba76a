"""Headroom, coverage and collapse of a pool, by hand."""

import numpy as np
import pytest

from fedpref.evaluation import paired_cluster_bootstrap
from fedpref.evaluation.headroom import pool_contrast
from fedpref.preference.contrast import ReportContrast
from fedpref.task import MatchCounts


def counts(tp: int, fp: int, fn: int) -> MatchCounts:
    return MatchCounts(tp, fp, fn, 0, 0, 0)


def report(
    a: MatchCounts, b: MatchCounts, oracle: str, *, usable: bool = False, identical: bool = False
) -> ReportContrast:
    found = {"a": a, "b": b}
    return ReportContrast(found, oracle, found[oracle], usable, identical)


REPORTS = [
    report(counts(2, 0, 0), counts(1, 0, 1), "a", usable=True),
    report(counts(0, 1, 2), counts(2, 1, 0), "b", usable=True),
    report(counts(1, 1, 0), counts(1, 1, 0), "a", identical=True),
    report(counts(1, 0, 1), counts(0, 2, 2), "a"),
]
SITES, PATIENTS = ["x", "x", "y", "y"], ["p1", "p2", "p3", "p3"]


def test_hand_worked() -> None:
    result = pool_contrast("both", ["a", "b"], REPORTS, SITES, PATIENTS, seed=3)
    # a: 4 tp, 2 fp, 3 fn, so 8/13; b: 4 tp, 4 fp, 3 fn, so 8/15; oracle: 6 tp, 2 fp, 1 fn: 12/15.
    assert result.f1 == {"a": pytest.approx(8 / 13), "b": pytest.approx(8 / 15)}
    assert result.oracle_f1 == pytest.approx(12 / 15)
    assert (result.best, result.baseline) == ("a", "a")
    assert result.headroom == pytest.approx(12 / 15 - 8 / 13)
    assert (result.reports, result.patients) == (4, 3)
    assert (result.usable, result.coverage) == (2, 0.5)
    assert (result.identical, result.identical_share) == (1, 0.25)
    assert result.over_best == paired_cluster_bootstrap(
        [[(2, 0, 0), (2, 1, 0), (1, 1, 0), (1, 0, 1)]],
        [[(2, 0, 0), (0, 1, 2), (1, 1, 0), (1, 0, 1)]],
        np.array(SITES),
        np.array(PATIENTS),
        statistic="global",
        seed=3,
    )
    assert result.over_best.effect == pytest.approx(result.headroom)
    # The second report alone makes the difference: draws without its patient have none.
    assert result.over_best.low == 0


def test_the_baseline_may_be_a_worse_one_or_outside() -> None:
    worse = pool_contrast("both", ["a", "b"], REPORTS, SITES, PATIENTS, baseline="b", draws=10)
    assert worse.headroom == pytest.approx(12 / 15 - 8 / 15)
    assert worse.best == "a"
    outside = pool_contrast(
        "both",
        ["a", "b"],
        REPORTS,
        SITES,
        PATIENTS,
        baseline="greedy",
        baseline_counts=[counts(1, 0, 0)] * 4,
        draws=10,
    )
    assert outside.baseline_f1 == 1
    # A better extractor than the oracle of the pool: nothing is clipped.
    assert outside.headroom == pytest.approx(12 / 15 - 1)
    assert "greedy" not in outside.f1
    with pytest.raises(ValueError, match="greedy"):
        pool_contrast("both", ["a", "b"], REPORTS, SITES, PATIENTS, baseline="greedy")


def test_equal_candidates_leave_the_first_as_best_and_no_interval() -> None:
    same = [report(counts(1, 0, 0), counts(1, 0, 0), "a", identical=True)] * 3
    result = pool_contrast("same", ["b", "a"], same, ["x"] * 3, ["p", "q", "r"])
    assert result.best == "b"
    assert result.headroom == 0
    assert result.identical_share == 1
    assert (result.over_best.low, result.over_best.degenerate) == (None, "all draws are equal")


def test_without_any_positive_there_is_no_f1() -> None:
    empty = [report(counts(0, 0, 0), counts(0, 0, 0), "a")]
    result = pool_contrast("empty", ["a", "b"], empty, ["x"], ["p"])
    assert (result.best, result.baseline, result.headroom, result.oracle_f1) == (None,) * 4
    assert result.over_best.degenerate is not None
    assert result.coverage == 0
    none = pool_contrast("none", ["a", "b"], [], [], [])
    assert (none.coverage, none.identical_share) == (None, None)
    assert none.to_dict()["over_best"]["effect"] is None
