"""benchmarks/aggregation.py and benchmarks/wire.py: a smoke run of each, of one layer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, folder: Path, *options: str) -> tuple[int, Any]:
    """Run a benchmark; return its exit code and the rows that it wrote."""
    out, program = folder / "out.json", BENCHMARKS / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(program), "--folder", str(folder), "--out", str(out), *options],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return done.returncode, json.loads(out.read_text())


def test_aggregation(tmp_path: Path) -> None:
    ways = ["flower", "pair-fedavg", "svd"]
    options = ["--layers", "1", "--sites", "2", "--repeats", "1", "--ways", *ways]
    code, found = run("aggregation", tmp_path, *options)
    assert code in (0, 1)  # of one layer, memory says little
    assert [(row["way"], row["sites"]) for row in found["rows"]] == [(way, 2) for way in ways]
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert found["adapter_bytes"] == 4 * 16 * 75776  # r = 16; widths and heights of 7 projections
    assert found["ways"]["svd"]["good"] is None


@pytest.mark.long
def test_wire(tmp_path: Path) -> None:
    code, found = run("wire", tmp_path, "--parameters", "1", "--formats", "int4")
    assert code == 0
    exact, lean = found
    assert (exact["format"], lean["format"]) == ("float32", "int4")
    assert exact["share"] == 1
    assert lean["share"] == pytest.approx(0.1289, abs=0.01)
    assert exact["error"] == 0 < lean["error"] < 0.2
    # What a run shows is what was sent, but for the handshake.
    assert 0 < lean["total"] - lean["shown_by_the_run"] < 0.01 * lean["total"]
