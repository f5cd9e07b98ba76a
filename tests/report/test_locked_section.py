"""The locked test and the candidate contrast in a report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpref.errors import DataError
from fedpref.report import write_report
from fedpref.report.contrast import Contrast, contrast_tables, load_contrast
from fedpref.report.locked_test import (
    NOT_OPENED,
    LockedTest,
    load_locked_test,
    locked_test_sentences,
    locked_test_tables,
)
from fedpref.report.result import Comparison

Value = dict[str, Any]
Write = Callable[[Value], Path]


def read(value: Value) -> LockedTest:
    return LockedTest.model_validate_json(json.dumps(value))


def test_the_papers_locked_test(locked_test: Value) -> None:
    tables = locked_test_tables(read(locked_test))
    assert tables["locked-test"].cells == [
        ["Central", "71.67 ± 0.40", "90.12 ± 0.40", "99.58 ± 0.00", "7.58 ± 0.00"],
        ["FedPref", "68.68 ± 0.40", "86.36 ± 0.40", "100.00 ± 0.00", "8.33 ± 0.00"],
    ]
    assert tables["locked-test"].caption.startswith("240 test reports of 231 patients.")
    assert tables["locked-test-effect"].cells == [["Central − FedPref", "+2.98", "+1.53 to +4.54"]]
    by_seed = tables["locked-test-seeds"]
    assert by_seed.cells[1] == [
        "20260713", "FedPref", "68.28", "86.76",
        "100.00 of 240", "98.00 to 100.00", "8.33 of 132", "6.33 to 10.33",
    ]  # fmt: skip
    assert by_seed.to_csv().splitlines()[2] == (
        "20260713,FedPref,68.28,86.76,100.00,240,240,98.00,100.00,8.33,11,132,6.33,10.33"
    )


def test_what_is_said(locked_test: Value) -> None:
    assert locked_test_sentences(None) == (NOT_OPENED,)
    effect, twice = locked_test_sentences(read(locked_test))
    assert effect == (
        "On the locked test, Central is 2.98 points above FedPref (95 % interval +1.53 to +4.54, "
        "which does not include 0)."
    )
    assert "6 (14 reports)" in twice
    assert "2 (5 reports) have annotations that contradict" in twice
    locked_test["duplicates"] = dict.fromkeys(locked_test["duplicates"], 0)
    locked_test["effect"] |= {"low": None, "high": None, "degenerate": "one patient"}
    locked_test["earlier"] = [
        {"file": "x.json", "run": "r", "created": None, "had_result": True},
    ]
    effect, twice, attempt = locked_test_sentences(read(locked_test))
    assert "no interval: one patient" in effect
    assert twice.startswith("No text occurs more than once")
    assert "with a result, was set aside: x.json, time unknown" in attempt


def test_the_page_says_whether_it_was_opened(
    comparison: Value, locked_test: Value, write_comparison: Write
) -> None:
    pytest.importorskip("matplotlib")
    folder = write_comparison(comparison)
    page = write_report(folder)[0]
    assert NOT_OPENED in page.read_text("utf-8")
    summary = folder / "report" / "summary.json"
    assert json.loads(summary.read_text("utf-8"))["locked_test"] is None
    (folder / "test.json").write_text(json.dumps(locked_test))
    files = {path.name for path in write_report(folder)}
    assert {"locked-test.md", "locked-test-effect.csv", "summary.json"} <= files
    assert NOT_OPENED not in page.read_text("utf-8")
    assert "71.67 ± 0.40" in page.read_text("utf-8")
    told = json.loads(summary.read_text("utf-8"))
    assert told["locked_test"]["effect"]["effect"] == 0.0298
    assert told["arms"]["fedpref"]["client_mean"] == comparison["arms"]["fedpref"]["rounds"][3][
        "client_mean"
    ]  # fmt: skip
    assert {effect["round"] for effect in told["effects"]} == {3}
    assert told["contrast"] is None


def test_a_comparison_without_its_arms_says_nothing_of_it(
    comparison: Value, write_comparison: Write
) -> None:
    pytest.importorskip("matplotlib")
    del comparison["arms"]["central"], comparison["trajectory_intervals"]["central"]
    comparison["effects"] = [e for e in comparison["effects"] if e["a"] != "central"]
    comparison["runs"] = [r for r in comparison["runs"] if r["arm"] != "central"]
    page = write_report(write_comparison(comparison))[0].read_text("utf-8")
    assert "Locked test" not in page


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 2}, "the round of the locked test: 2, of the comparison: 3"),
        ({"seeds": [1, 2, 3]}, r"\(1, 2, 3\), of the comparison: \(20260713"),
        ({"seeds": [1]}, "measures of 3 seeds, not 1"),
        ({"patients": None}, "patients"),
    ],
)
def test_a_test_of_something_else_is_refused(
    comparison: Value, locked_test: Value, tmp_path: Path, change: Value, words: str
) -> None:
    result = Comparison.model_validate_json(json.dumps(comparison))
    assert load_locked_test(tmp_path, result) is None
    (tmp_path / "test.json").write_text(json.dumps(locked_test | change))
    with pytest.raises(DataError, match=words):
        load_locked_test(tmp_path, result)


def test_the_papers_contrast(contrast: Value, tmp_path: Path) -> None:
    assert load_contrast(tmp_path) is None
    (tmp_path / "contrast.json").write_text(json.dumps(contrast))
    loaded = load_contrast(tmp_path)
    assert isinstance(loaded, Contrast)
    tables = contrast_tables(loaded)
    assert tables["contrast"].cells[0] == [
        "teachers and target", "100", "98", "76", "76.00", "7", "7.00",
    ]  # fmt: skip
    assert tables["contrast-oracle"].cells == [
        ["teachers and target", "target", "52.00", "66.30", "+14.30", "teacher-a", "+6.21",
         "+3.70 to +9.01"],
        ["alike", "no data", "52.00", "66.30", "+14.30", "no data", "0.00",
         "no interval: all draws are equal"],
    ]  # fmt: skip
    assert tables["contrast-candidates"].cells[0] == ["teachers and target", "teacher-a", "60.10"]
    assert "14.30,teacher-a,6.21,3.70,9.01," in tables["contrast-oracle"].to_csv()
    (tmp_path / "contrast.json").write_text('{"kind": "audit"}')
    with pytest.raises(DataError, match="kind"):
        load_contrast(tmp_path)
