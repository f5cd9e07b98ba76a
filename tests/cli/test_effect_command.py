"""What `fedpref effect` refuses before Flower is started, and what it shows of a result."""

import json
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run, make_sites
from typer.testing import CliRunner

from fedpref.cli import app
from fedpref.errors import ConfigError, DataError, FedPrefError, FedPrefErrors

ROOT = str(Path(__file__).parents[2])


def refused(*arguments: str) -> FedPrefError:
    result = CliRunner().invoke(app, ["effect", "--app", ROOT, *arguments])
    assert isinstance(result.exception, FedPrefError), result.output
    return result.exception


@pytest.fixture(autouse=True)
def no_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("Flower was started")

    monkeypatch.setattr("fedpref.launch.LocalFlower.__enter__", fail)
    monkeypatch.chdir(tmp_path)


def test_wrong_arms_and_lost_sites_are_told_at_once(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites", (6, 6))
    run = str(finish_run(tmp_path, sites, "one", 0.5))
    error = refused(run, run, run)
    assert isinstance(error, ConfigError)
    assert "3 arguments" in error.what
    assert "no measured effect" in refused(run).what
    (tmp_path / "effect.json").write_text('{"synthetic": true, "a": []}')
    assert "was changed" in refused(str(tmp_path)).what
    assert "no run in this folder" in refused(run, "runs/two").what
    both = refused("runs/two", "runs/three")
    assert isinstance(both, FedPrefErrors)
    assert [Path(str(part.file)).name for part in both.errors] == ["two", "three"]
    # The folder of a comparison holds its runs in runs/, as this one does.
    assert "name one of the runs in it: runs/one" in refused(run, str(tmp_path)).fix
    assert "arm A has 2 runs and arm B 1" in refused(f"{run},{run}", run).what
    lost = refused(run, run, "--set", "sites=/nowhere")
    assert isinstance(lost, DataError)
    assert "no such folder" in lost.what


def effect(value: float | None, degenerate: str | None = None) -> dict[str, Any]:
    if value is None or degenerate:
        return {"a": None, "b": None, "effect": value, "low": None, "high": None,
                "degenerate": degenerate}  # fmt: skip
    return {"a": 0.7, "b": 0.7 - value, "effect": value, "low": value - 0.0124,
            "high": value + 0.013, "degenerate": None}  # fmt: skip


def test_a_result_fits_a_terminal_and_says_who_is_not_in_it(tmp_path: Path) -> None:
    run = {"strategy": "pair-fedavg", "seed": 20260713, "round": 3}
    result = {
        "a": [run, run | {"seed": 20260714}],
        "b": [run | {"strategy": "local"}, run | {"strategy": "local", "seed": 20260714}],
        "synthetic": True,
        "draws": 10_000,
        "answers": {"totals": 1, "withheld": 1, "refused": 1},
        "effects": {
            "client_mean": effect(0.0249),
            "worst_site": effect(None, "north, south sent no totals and may be the worst"),
            "global": effect(0.0, "all draws are equal"),
        },
        "sites": {
            "east-hospital": {"answer": "totals", "reason": None, "effect": effect(-0.03)},
            "north": {"answer": "withheld", "reason": "fewer than 18 patients", "effect": None},
            "south": {"answer": "refused", "reason": "it gave no answer", "effect": None},
        },
    }
    (tmp_path / "effect.json").write_text(json.dumps(result))
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["effect", str(tmp_path)]).output
    assert max(len(line) for line in shown.splitlines()[:-1]) <= 80
    for part in (
        "Synthetic",
        "a: pair-fedavg, round 3, seeds 20260713, 20260714",
        "b: local, round 3, seeds 20260713, 20260714",
        "1 of 3 sites",
        "+2.49 (+1.25 … +3.79)",
        "−3.00 (−4.24 … −1.70)",
        "0.00 (no interval: all draws are equal)",
        "site north: withheld: fewer than 18 patients",
        "site south: refused: it gave no answer",
        "Sites without totals are in none of these numbers",
    ):
        assert part in " ".join(shown.split()), part
    as_json = CliRunner().invoke(app, ["effect", str(tmp_path), "--json"]).output
    assert json.loads(as_json) == result
