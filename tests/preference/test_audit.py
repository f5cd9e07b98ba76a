"""The audit, on counts that can be checked by eye."""

import pytest

from fedpref.preference.audit import SplitAudit, TeacherAudit, audit_split, merge_audits
from fedpref.preference.pairs import Pair
from fedpref.task import Structure, project

GOOD = '{"diseases":["pneumonia"],"findings":[]}'
A, B = Structure(["pneumonia"]), Structure()


def pair(chosen: str, rejected: str, margin: float) -> Pair:
    return Pair(chosen, rejected, A, B, margin)


def test_one_split() -> None:
    projections = [
        {"x": project(GOOD), "y": project(f"Sure: {GOOD}")},
        {"x": project(GOOD), "y": project("I cannot say")},
        {"x": project('{"diseases":[]}'), "y": project(GOOD)},
    ]
    audit = audit_split("train", ["x", "y"], projections, [pair("x", "y", 0.4)], annotated=2)
    assert audit.teachers == (
        TeacherAudit("x", "train", 3, 2, 2, 1, 1, 0, {"missing_key": 1}),
        TeacherAudit("y", "train", 3, 1, 2, 1, 0, 1, {"no_object": 1}),
    )
    assert audit.splits == (SplitAudit("train", 3, 2, (0.4,)),)


def test_margins_have_mean_and_median() -> None:
    split = SplitAudit("dev", 5, 5, (0.1, 0.2, 0.9))
    assert split.margin_mean == pytest.approx(0.4)
    assert split.margin_median == 0.2
    empty = SplitAudit("dev")
    assert (empty.margin_mean, empty.margin_median) == (None, None)


def test_sites_add_up_split_by_split() -> None:
    one = audit_split("train", ["x"], [{"x": project(GOOD)}], [], annotated=1)
    dev = audit_split("dev", ["x"], [{"x": project("")}], [], annotated=1)
    two = audit_split("train", ["x"], [{"x": project("")}], [pair("x", "x", 0.2)], annotated=0)
    merged = merge_audits([one, dev, two])
    assert merged.teachers == (
        TeacherAudit("x", "train", 2, 1, 1, 1, 1, 1, {"no_object": 1}),
        TeacherAudit("x", "dev", 1, 0, 0, 1, 0, 0, {"no_object": 1}),
    )
    assert merged.splits == (SplitAudit("train", 2, 1, (0.2,)), SplitAudit("dev", 1, 1))
    assert merged.to_dict()["splits"][0]["margin_median"] == 0.2


def test_different_rows_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="same split"):
        TeacherAudit("x", "train") + TeacherAudit("x", "dev")
