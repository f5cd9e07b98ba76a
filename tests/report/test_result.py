"""What is not complete, not there or not right is refused, by its place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpref.errors import DataError, RoundError
from fedpref.report.result import Comparison, load_result

Value = dict[str, Any]
Write = Callable[[Value], Path]


def test_a_comparison_goes_before_a_run(comparison: Value, write_comparison: Write) -> None:
    folder = write_comparison(comparison)
    (folder / "summary.json").write_text("{}")
    assert isinstance(load_result(folder), Comparison)


def test_keys_of_newer_writers_are_let_be(comparison: Value, write_comparison: Write) -> None:
    comparison["later"] = 1
    assert load_result(write_comparison(comparison))


@pytest.mark.parametrize("complete", [False, None])
def test_an_incomplete_comparison_is_refused(
    comparison: Value, write_comparison: Write, complete: bool | None
) -> None:
    comparison.pop("complete")
    if complete is not None:
        comparison["complete"] = complete
    with pytest.raises(RoundError, match=r"not complete\. resume it: fedpref compare"):
        load_result(write_comparison(comparison))


def test_a_folder_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(RoundError, match=r"holds neither comparison.json nor summary.json"):
        load_result(tmp_path)
    with pytest.raises(RoundError, match="there is no such folder"):
        load_result(tmp_path / "absent")


def changed(value: Value, *path: Any, to: object) -> Value:
    *way, last = path
    inner: Any = value
    for key in way:
        inner = inner[key]
    inner[last] = to
    return value


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("arms", "local", "rounds", 2, "client_mean"), 66.6, "arms.local.rounds.2.client_mean"),
        (("arms", "local", "rounds", 2, "client_mean"), float("nan"), "finite number"),
        (("arms", "local", "rounds", 2, "client_mean"), "0.6", "valid number"),
        (("arms", "other"), {}, "arms.other"),
        (("selected_round",), 4, "selected_round 4 is after the last, 3"),
        (("rounds",), 4, "central has 4 rounds, not 0 to 4"),
        (("seeds",), [1, 2], "scores of 3 seeds, not 2"),
        (("trajectory_intervals", "local"), [], "intervals of 0 rounds"),
        (("audit", "cohorts", 0, "overall"), [0.5], "train_pairs has 1 shares"),
        (("effects", 0, "site"), "site-1", "of a statistic or of a site"),
    ],
)
def test_a_malformed_comparison_is_refused_by_place(
    comparison: Value, write_comparison: Write, path: tuple[Any, ...], to: object, said: str
) -> None:
    folder = write_comparison(changed(comparison, *path, to=to))
    with pytest.raises(DataError) as error:
        load_result(folder)
    assert said in str(error.value)
    assert "comparison.json" in str(error.value)


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(DataError, match="the file"):
        load_result(tmp_path)


def test_the_runs_two_files_are_of_one_run(
    run_files: tuple[Value, Value], write_run: Callable[[Value, Value], Path]
) -> None:
    summary, config = run_files
    config["digest"] = "0" * 64
    with pytest.raises(DataError, match=r"000000000000.*c0ffc0ffc0ff"):
        load_result(write_run(summary, config))


def test_a_run_without_its_configuration(
    run_files: tuple[Value, Value], write_run: Callable[[Value, Value], Path]
) -> None:
    folder = write_run(*run_files)
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        load_result(folder)


def test_a_run_that_wrote_no_common_adapter(
    run_files: tuple[Value, Value], write_run: Callable[[Value, Value], Path]
) -> None:
    """Sites that train alone leave no adapter of the federation."""
    summary, config = json.loads(json.dumps(run_files))
    summary["adapter"] = summary["adapter_hash"] = None
    for record in summary["rounds"]:
        record["adapter"] = record["root"] = None
    assert load_result(write_run(summary, config))
