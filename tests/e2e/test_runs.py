"""The app through real Flower: as a simulation, as a deployment, to the same bits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# Two rounds with an SFT and a DPO step each; nothing here measures how well it learns.
CONFIG = {"rounds": 1, "evaluation.max-new-tokens": 96, "join-deadline": 120.0}

pytestmark = pytest.mark.e2e


def simulate(folder: Path, sites: Path, **config: object) -> subprocess.CompletedProcess[str]:
    """`fedpref run` with two SuperNodes, everything it writes under `folder`."""
    values = {**CONFIG, "sites": str(sites), "runs-dir": str(folder), "run-id": "run", **config}
    settings = [f"--set={key}={json.dumps(value)}" for key, value in values.items()]
    return subprocess.run(
        [str(BIN / "fedpref"), "run", "--nodes", "2", "--json", *settings],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "FEDPREF_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.fixture(scope="module")
def simulated(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a simulated run over a copy of the sites."""
    folder = tmp_path_factory.mktemp("simulation")
    copy = shutil.copytree(made, folder / "sites")
    before = {p.pid for p in psutil.process_iter()}
    result = simulate(folder, copy)
    assert result.returncode == 0, result.stderr[-4000:]
    summary = json.loads(result.stdout)
    summary["folder"] = folder
    summary["log"] = result.stderr
    summary["left"] = [
        " ".join(p.info["cmdline"] or [])
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in before and str(folder) in " ".join(p.info["cmdline"] or [])
    ]
    return summary


def adapter(folder: Path, round_: int) -> dict[str, np.ndarray]:
    path = folder / "run" / "adapters" / f"round-{round_}" / "adapter_model.safetensors"
    return load_file(path)


def test_a_simulation_ends_complete_and_leaves_no_process(simulated: dict[str, Any]) -> None:
    assert simulated["complete"] is True
    assert simulated["synthetic"] is True
    assert [record["stage"] for record in simulated["rounds"]] == ["sft", "dpo"]
    for record in simulated["rounds"]:
        assert set(record["sites"]) == {"site-1", "site-2"}
        assert all(site["pairs"] > 0 for site in record["sites"].values())
        assert sum(site["weight"] for site in record["sites"].values()) == pytest.approx(1)
        assert not record["refused"]["training"]
    # Every adapter goes down once (the initial one is made at the site) and up once a round.
    size = sum(array.nbytes for array in adapter(simulated["folder"], 0).values())
    up = [record["bytes"]["up"] for record in simulated["rounds"]]
    down = [record["bytes"]["down"] for record in simulated["rounds"]]
    for bytes_ in (*up, *down):
        assert 2 * size <= bytes_ < 2 * size + 20_000
    assert simulated["left"] == []


def test_training_changes_the_adapter(simulated: dict[str, Any]) -> None:
    first, second = (adapter(simulated["folder"], t) for t in (0, 1))
    assert first.keys() == second.keys()
    assert all((first[key] != second[key]).any() for key in first if "lora_B" in key)


def test_no_text_is_in_the_log_or_the_run(simulated: dict[str, Any], made: Path) -> None:
    rows = [json.loads(line) for line in (made / "site-1/reports.jsonl").read_text().splitlines()]
    written = simulated["log"] + "".join(
        path.read_text(errors="replace")
        for path in (simulated["folder"] / "run").rglob("*")
        if path.is_file() and path.suffix in {".json", ".jsonl"}
    )
    for row in rows:
        assert row["patient_id"] not in written
        assert row["report_id"] not in written
        assert not any(
            len(sentence) > 25 and sentence in written for sentence in row["text"].split(".")
        )


def test_a_deployment_gives_the_same_bits(
    simulated: dict[str, Any], made: Path, deployment: Any, tmp_path: Path
) -> None:
    copy = shutil.copytree(made, tmp_path / "sites")
    for name in ("site-1", "site-2"):
        deployment.add_node(name, copy / name)
    config = {**CONFIG, "runs-dir": str(tmp_path), "run-id": "run", "min-sites": 2}
    status = deployment.run(config)
    assert status == "finished:completed"
    for round_ in (0, 1):
        one, other = adapter(simulated["folder"], round_), adapter(tmp_path, round_)
        assert one.keys() == other.keys()
        assert all((one[key] == other[key]).all() for key in one)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for mine, theirs in zip(summary["rounds"], simulated["rounds"], strict=True):
        assert {s: v["counts"] for s, v in mine["sites"].items()} == {
            s: v["counts"] for s, v in theirs["sites"].items()
        }


def test_a_failing_run_is_an_error_and_leaves_nothing(tmp_path: Path, made: Path) -> None:
    # Only the sites, with a tokenizer, can tell that no pair fits.
    result = simulate(tmp_path, made, **{"training.max-length": 64})
    assert result.returncode == 1
    assert "site site-2" in result.stderr
    assert "the limit is 64" in result.stderr
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
