"""Splits and sites: nobody and no text in two of them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.data import Annotation, Report
from fedpref.data.cohort import assign_sites, case_labels, inseparable, split_cohort
from fedpref.task import Ignore, Structure

SHARES = [28, 22, 18, 14, 10, 8]
DISEASES = (["lung opacity"], ["pneumonia"], [], [])


def cohort(n: int, split: str = "train") -> tuple[list[Report], list[Annotation]]:
    """Every tenth report repeats the text of the one before, every seventh its patient."""
    reports, annotations = [], []
    for i in range(n):
        text = f"report {i - (i % 10 == 9)}"
        reports.append(Report(f"r{i}", f"p{i - (i % 7 == 6)}", split, text))
        annotations.append(Annotation(f"r{i}", Structure(DISEASES[i % 4])))
    return reports, annotations


def test_inseparable_joins_patients_and_texts() -> None:
    reports = [
        Report("a", "p1", "train", "Clear."),
        Report("b", "p2", "train", "clear"),
        Report("c", "p2", "train", "Effusion."),
        Report("d", "p3", "train", "Other."),
    ]
    groups = inseparable(reports)
    assert groups[0] == groups[1] == groups[2] != groups[3]
    assert len(inseparable([])) == 0


def test_case_labels() -> None:
    labels = case_labels(
        [
            Annotation("a", Structure(["pneumonia"])),
            Annotation("b", Structure()),
            Annotation("c", Structure(), Ignore(frozenset({"atelectasis"}))),
        ]
    )
    assert labels.shape == (3, 10)
    assert np.flatnonzero(labels[0]).tolist() == [8]
    assert np.flatnonzero(labels[1]).tolist() == [9]
    assert not labels[2].any()  # undecided is neither diseased nor normal


@given(st.integers(0, 1000))
def test_splits_keep_groups_and_fractions(seed: int) -> None:
    reports, annotations = cohort(400)
    result = split_cohort(reports, annotations, seed=seed)
    assert [r.report_id for r in result] == [r.report_id for r in reports]
    for key in (lambda r: r.patient_id, lambda r: r.text):
        splits: dict[str, set[str]] = {}
        for report in result:
            splits.setdefault(key(report), set()).add(report.split)
        assert all(len(where) == 1 for where in splits.values())
    sizes = Counter(report.split for report in result)
    assert abs(sizes["train"] - 280) <= 6
    assert abs(sizes["dev"] - 60) <= 6
    # Stratified: each split has its part of the pneumonias, of which there are 100.
    ill = Counter(r.split for r, a in zip(result, annotations, strict=True) if a.structure.diseases)
    assert abs(ill["dev"] - 30) <= 5


def test_split_fractions_must_make_sense() -> None:
    with pytest.raises(ValueError, match="fractions"):
        split_cohort(*cohort(4), fractions={"valid": 1.0}, seed=0)


def test_sites_keep_groups_together_in_every_split() -> None:
    train, train_notes = cohort(300)
    dev, dev_notes = cohort(100, "dev")
    dev = [Report("d" + r.report_id, "d" + r.patient_id, "dev", "d" + r.text) for r in dev]
    site = assign_sites(
        [*train, *dev], [*train_notes, *dev_notes], SHARES, alpha=0.5, skew=0.7, seed=3
    )
    for rows, offset in ((train, 0), (dev, 300)):
        for group in np.unique(groups := inseparable(rows)):
            members = site[offset + np.flatnonzero(groups == group)]
            assert len(set(members.tolist())) == 1
    # Groups are small, so capacities are met to within one group.
    assert abs(int((site[:300] == 0).sum()) - 84) <= 2
    again = assign_sites(train, train_notes, SHARES, alpha=0.5, skew=0.7, seed=3)
    assert (again == site[:300]).all()
