"""`fedpref compare` through real Flower: three arms, resumable, nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ARMS = ("fedpref", "local", "central")

pytestmark = pytest.mark.e2e


def command(folder: Path, name: str, *arguments: str) -> list[str]:
    values = {"rounds": 1, "evaluation.max-new-tokens": 96, "sites": str(folder / "sites")}
    settings = [f"--set={key}={json.dumps(value)}" for key, value in values.items()]
    options = ["--seeds", "5", "--into", str(folder / "x"), "--json", *settings]
    return [str(BIN / "fedpref"), name, *(options if name == "compare" else []), *arguments]


def run(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, name, *arguments),
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "FEDPREF_HOME": str(folder / "home")}


def left_behind(folder: Path) -> list[str]:
    lines = (" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(folder) in line]


def scores(comparison: dict[str, Any]) -> dict[str, Any]:
    """All that must be equal between an interrupted and an uninterrupted comparison."""
    return {
        **{key: comparison[key] for key in ("effects", "selected_round", "trajectory_intervals")},
        **{arm: comparison["arms"][arm]["rounds"] for arm in ARMS},
    }


@pytest.fixture(scope="module")
def compared(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compare")
    shutil.copytree(made, folder / "sites")
    result = run(folder, "compare")
    assert result.returncode == 0, result.stderr[-4000:]
    return {"folder": folder, "left": left_behind(folder), **json.loads(result.stdout)}


def test_three_matched_arms(compared: dict[str, Any]) -> None:
    assert compared["complete"] is True
    assert compared["synthetic"] is True
    arms = compared["arms"]
    assert set(arms) == set(ARMS)
    pairs = sum(site["pairs"] for site in compared["sites"].values())
    for arm in ARMS:
        assert arms[arm]["exposure"] == {"pairs": pairs, "sft": 1, "dpo": 1}
        assert [set(row["sites"]) for row in arms[arm]["rounds"]] == [{"site-1", "site-2"}] * 2
    assert compared["left"] == []


def test_local_starts_from_the_roots_that_fedpref_averages(compared: dict[str, Any]) -> None:
    for site in ("site-1", "site-2"):
        roots = compared["folder"] / "sites" / site / "state" / "demo" / "roots"
        assert len([path for path in roots.iterdir() if path.is_dir()]) == 1


def test_the_report_of_a_real_comparison(compared: dict[str, Any]) -> None:
    page = (compared["folder"] / "x" / "report" / "report.html").read_text()
    assert "Synthetic data" in page
    for arm in ("FedPref", "Local", "Central"):
        assert arm in page


def test_the_same_command_again_runs_nothing(compared: dict[str, Any]) -> None:
    folder = compared["folder"]
    before = {p: p.stat().st_mtime_ns for p in (folder / "x" / "runs").rglob("*")}
    result = run(folder, "compare")
    assert result.returncode == 0, result.stderr[-4000:]
    assert scores(json.loads(result.stdout)) == scores(compared)
    assert {p: p.stat().st_mtime_ns for p in (folder / "x" / "runs").rglob("*")} == before


def test_the_test_split_is_opened_once(compared: dict[str, Any]) -> None:
    folder = compared["folder"]
    first = run(folder, "test", str(folder / "x"), "--json")
    assert first.returncode == 0, first.stderr[-4000:]
    result = json.loads(first.stdout)
    assert set(result["policies"]) == {"fedpref", "central"}
    assert result["round"] == compared["selected_round"]
    page = folder / "x" / "report" / "report.html"
    assert f"Locked test at round {result['round']}" in page.read_text()
    again = run(folder, "test", str(folder / "x"), "--json")
    assert again.returncode == 1
    assert "evaluated before" in again.stderr
    assert again.stdout == ""


@pytest.mark.long
def test_a_killed_comparison_goes_on_to_the_same_result(
    compared: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path / "sites")
    process = subprocess.Popen(
        command(tmp_path, "compare"),
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    closed = tmp_path / "x" / "runs" / "fedpref-5" / "rounds.jsonl"
    deadline = time.monotonic() + 300
    while not closed.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1][-4000:]
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    result = run(tmp_path, "compare")
    assert result.returncode == 0, result.stderr[-4000:]
    assert scores(json.loads(result.stdout)) == scores(compared)
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_strategies_over_two_partitions(
    made: Path, write_two_sites: Callable[..., Path], tmp_path: Path
) -> None:
    write_two_sites(tmp_path / "other", seed=20260813)
    shutil.copytree(made, tmp_path / "sites")
    arguments = ["--strategies", "uniform,feddraw(eta=2,similarity=factors),ffa"]
    arguments += ["--sites", str(tmp_path / "sites"), "--sites", str(tmp_path / "other")]
    result = run(tmp_path, "compare", *arguments)
    assert result.returncode == 0, result.stderr[-4000:]
    found = json.loads(result.stdout)
    names = ["uniform", "feddraw(eta=2,similarity=factors)", "ffa"]
    assert list(found["arms"]) == names
    assert found["rankings"]["client_mean"]["ranked_partitions"] == 2
    for part in found["partitions"]:
        comparison = json.loads((tmp_path / "x" / part["path"] / "comparison.json").read_text())
        arms = comparison["arms"]
        assert [arms[name]["strategy"]["same_roots"] for name in names] == [True, True, False]
        # FedDRAW's last round is uniform by its schedule.
        assert set(arms[names[1]]["weights"][-1].values()) == {0.5}
        roots = Path(part["sites"]) / "site-1" / "state" / "demo" / "roots"
        assert len([path for path in roots.iterdir() if path.is_dir()]) == 2  # ffa has its own
    assert (tmp_path / "x" / "report" / "report.html").exists()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "x").rglob("rounds.jsonl")}
    again = run(tmp_path, "compare", *arguments)
    assert json.loads(again.stdout) == found
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "x").rglob("rounds.jsonl")} == before
    assert left_behind(tmp_path) == []
