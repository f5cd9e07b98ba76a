"""benchmarks/gpu.sh: what it runs, says and returns, with a python that is none; a smoke run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
# Instead of python: the first call asks for the GPU's memory, the others are the benchmark's.
FAKE = """#!/bin/sh
if [ "$1" = - ]; then {gpu}; exit; fi
echo "$@" >>"$LOG"
case "$*" in *{fails}*) echo why >&2; exit 1;; esac
echo a table
"""


def run(
    folder: Path, python: str | Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the script in `folder`."""
    sh = shutil.which("sh")
    assert sh is not None
    env = {"PYTHON": str(python), "PATH": os.defpath, "HOME": str(folder), **more}
    return subprocess.run(
        [sh, str(SCRIPT), *words], check=False, cwd=folder, env=env, capture_output=True, text=True
    )


def fake(folder: Path, gpu: str = "echo 80", fails: str = "nothing") -> Path:
    """Write a python that stands for one with a GPU."""
    path = folder / "python"
    path.write_text(FAKE.format(gpu=gpu, fails=fails))
    path.chmod(0o755)
    return path


def test_both_models_are_measured_into_a_folder_that_is_taken_from_here(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(tmp_path, fake(tmp_path), "results", LOG=str(log))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "results" / "qwen3-8b.txt").read_text() == "a table\n"
    small, large = log.read_text().splitlines()
    for words, shape in ((small, "qwen3-0.6b"), (large, "qwen3-8b")):
        assert f"--shape {shape} --out results/{shape}.json" in words
        assert "--dtype bfloat16 --checkpointing --device cuda" in words
    assert "--parts" not in small
    assert "--parts sft,dpo,generation " in large


@pytest.mark.parametrize(("fails", "status"), [("0.6b", 1), ("8b", 2), ("qwen3", 3)])
def test_the_exit_status_says_which_failed(tmp_path: Path, fails: str, status: int) -> None:
    done = run(tmp_path, fake(tmp_path, fails=fails), LOG=str(tmp_path / "log"))
    assert done.returncode == status
    assert done.stdout.count("ended with status 1") == status.bit_count()
    assert done.stdout.count("why") == status.bit_count()
    assert done.stdout.count("a table") == 2 - status.bit_count()


def test_a_small_gpu_leaves_the_large_model_out(tmp_path: Path) -> None:
    done = run(tmp_path, fake(tmp_path, gpu="echo 24"), LOG=str(tmp_path / "log"))
    assert done.returncode == 0
    assert "qwen3-8b left out: 24 GiB" in done.stdout


def test_without_a_gpu_one_line_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.splitlines() == [
        "gpu.sh: no CUDA GPU; `benchmarks/gpu.sh --smoke` runs the same on a CPU"
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_smoke_run(tmp_path: Path) -> None:
    """The same script and program as on a GPU; everything is there, and the ways agree."""
    assert run(tmp_path, sys.executable, "--smoke", "out").returncode == 0
    result = json.loads((tmp_path / "out" / "qwen3-smoke.json").read_text())
    assert (result["arguments"]["dtype"], result["arguments"]["checkpointing"]) == (
        "bfloat16",
        True,
    )
    assert [row["way"] for row in result["sft"]["rows"]] == ["SFT, TRL", "SFT, FedPref"]
    assert len(result["dpo"]["rows"]) == 3
    for part in ("sft", "dpo"):
        assert all(value < 1e-2 for value in result[part]["deviation"].values())
        assert all(row["seconds"] > 0 for row in result[part]["rows"])
    # Each optimiser step is one loss; the first of DPO is ln 2, at its reference.
    losses = result["dpo"]["rows"][0]["losses"]
    assert len(losses) == 2
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)
    assert result["generation"]["agreement"]["reports"] == 2
    assert result["logps"]["good"]
    table = (tmp_path / "out" / "qwen3-smoke.txt").read_text()
    assert max(map(len, table.splitlines())) <= 100
    assert all(line in table for part in ("sft", "logps") for line in result[part]["note"])
