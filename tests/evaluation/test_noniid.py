"""The non-IID audit: the paper's figures, hand-worked cohorts, and what a deployment withholds."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

# Test folders are no packages; the paper's tables are shared by path.
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from test_divergence import PAIRS, PREVALENCE

from fedpref.data import case_mix_divergence, permutation_test
from fedpref.evaluation.noniid import (
    SiteCells,
    deployed_audit,
    simulated_audit,
    site_cells,
    withhold,
)

NAMES = ("opacity", "effusion", "normal")


def rows(*labels: str) -> Any:
    """One row a word: o opacity, e effusion, b both, n normal, u undecided."""
    codes = {"o": "100", "e": "010", "b": "110", "n": "001", "u": "000"}
    return np.array([[c == "1" for c in codes[word]] for word in labels], dtype=bool).reshape(-1, 3)


def test_the_papers_tables() -> None:
    cells = {
        f"S{k}": SiteCells(PAIRS[k], None, tuple(row[k] / 100 for row in PREVALENCE))
        for k in range(6)
    }
    labels = [f"label {number}" for number in range(10)]
    [audit] = deployed_audit(labels, {"train_pairs": cells}, synthetic=False).cohorts
    assert audit.rows == 2961
    assert audit.divergence == pytest.approx(0.0882, abs=5e-5)
    assert audit.divergence_labels == 10
    assert audit.p_value is None
    # Table 7's last column, computed from the others: all within the rounding of 0.1.
    overall = [25.7, 36.0, 7.0, 27.8, 2.6, 67.4, 22.5, 17.4, 2.2, 12.4]
    assert audit.overall == pytest.approx([p / 100 for p in overall], abs=1e-3)


def test_hand_worked() -> None:
    cohorts = {
        "train_reports": {"a": rows("o", "b", "n", "u"), "b": rows("n", "n")},
        "train_pairs": {"a": rows("o", "b"), "b": rows()},
    }
    audit = simulated_audit(NAMES, cohorts, synthetic=True, permutations=99)
    reports, pairs = audit.cohorts
    assert reports.sizes == {"a": 4, "b": 2}
    assert reports.positive == {"a": 2, "b": 0}
    assert reports.prevalence == {"a": (0.5, 0.25, 0.25), "b": (0.0, 0.0, 1.0)}
    assert reports.overall == pytest.approx((2 / 6, 1 / 6, 3 / 6))
    # Differences to the overall shares in sixths: a (1, 1/2, -3/2), b (-2, -1, 3).
    squares = 4 * (1 + 1 / 4 + 9 / 4) + 2 * (4 + 1 + 9)
    assert reports.divergence == pytest.approx((squares / 36 / (6 * 3)) ** 0.5)
    # Only one site has pairs: there is nothing to compare.
    assert pairs.sizes == {"a": 2, "b": 0}
    assert pairs.prevalence["b"] is None
    assert (pairs.divergence, pairs.null_95, pairs.p_value) == (None, None, None)
    assert audit.support()[0] == {
        "site": "a",
        **{"train_reports": 4, "train_reports_positive": 2},
        **{"train_pairs": 2, "train_pairs_positive": 2},
        **dict.fromkeys(["dev_reports", "dev_reports_positive", "dev_pairs", "dev_pairs_positive"]),
    }


@given(st.integers(0, 2**32 - 1))
def test_it_is_the_permutation_test_of_the_pooled_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, at = rng.random((30, 4)) < 0.4, np.sort(rng.integers(0, 3, 30))
    found = {f"s{k}": labels[at == k] for k in range(3)}
    names = ["x", "y", "z", "normal"]
    [audit] = simulated_audit(
        names, {"dev_reports": found}, synthetic=False, permutations=49, seed=5
    ).cohorts
    test = permutation_test(labels, at, permutations=49, seed=5)
    assert audit.divergence == pytest.approx(test.observed)
    assert (audit.null_95, audit.p_value) == (test.null_95, test.p_value)
    assert audit.overall == pytest.approx(labels.mean(axis=0))


def test_an_empty_cohort_has_no_numbers() -> None:
    [audit] = simulated_audit(
        NAMES, {"dev_reports": {"a": rows(), "b": rows()}}, synthetic=False
    ).cohorts
    assert (audit.rows, audit.divergence, audit.overall) == (0, None, (None, None, None))


def test_small_cells_are_withheld_in_both_directions() -> None:
    # 12 rows: opacity 8 (4 without), effusion 6, normal 3.
    matrix = rows(*"bbb", *"ooooo", "e", *"nnn")
    matrix[[9, 10], 1] = True
    assert site_cells(matrix) == SiteCells(12, 11, (8 / 12, 6 / 12, 3 / 12))
    assert withhold(site_cells(matrix), 4) == SiteCells(12, None, (8 / 12, 6 / 12, None))
    assert withhold(site_cells(matrix), 5) == SiteCells(12, None, (None, 6 / 12, None))
    assert withhold(site_cells(matrix), 13) == SiteCells(None, None, None)
    # A zero tells as much as a one.
    assert withhold(site_cells(rows(*"ooooooo")), 2).prevalence == (None, None, None)
    assert withhold(site_cells(rows()), 1) == SiteCells(None, None, None)


@given(st.lists(st.sampled_from("oebnu"), max_size=30), st.integers(1, 8))
def test_nothing_shown_is_over_fewer_rows_than_the_minimum(words: list[str], minimum: int) -> None:
    full = site_cells(rows(*words))
    told = withhold(full, minimum)
    assert told.positive is None
    assert told.rows is None or told.rows >= minimum
    for share in told.prevalence or ():
        if share is not None:
            assert minimum <= round(share * len(words)) <= len(words) - minimum
    # With a minimum of one, all but shares of 0 and 1 are shown.
    if minimum == 1 and words and full.prevalence is not None:
        assert told.prevalence == tuple(s if 0 < s < 1 else None for s in full.prevalence)


def test_divergence_is_over_what_all_sites_tell() -> None:
    cells = {
        "a": SiteCells(30, None, (0.5, None, 0.2)),
        "b": SiteCells(10, None, (0.1, 0.6, 0.4)),
        "c": SiteCells(None, None, None),
    }
    audit = deployed_audit(NAMES, {"dev_pairs": cells}, synthetic=False)
    [cohort] = audit.cohorts
    assert cohort.rows == 40
    assert cohort.overall == (pytest.approx(0.4), None, pytest.approx(0.25))
    assert cohort.divergence_labels == 2
    assert cohort.divergence == pytest.approx(
        case_mix_divergence([30, 10], [[0.5, 0.2], [0.1, 0.4]])
    )
    assert audit.sites == ("a", "b", "c")
    nobody = {"a": cells["a"], "c": cells["c"]}
    [alone] = deployed_audit(NAMES, {"dev_pairs": nobody}, synthetic=False).cohorts
    assert alone.divergence is None
