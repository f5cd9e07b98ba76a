"""What `run`, `compare`, `summary` and `site check` refuse at once, before Flower is started."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpref.cli import app
from fedpref.cli.run import simulation
from fedpref.data import Annotation, Report, write_site
from fedpref.errors import ConfigError, DataError, FedPrefError, FedPrefErrors, RoundError
from fedpref.task import Structure

ROOT = str(Path(__file__).parents[2])


def refused(*arguments: str) -> FedPrefError:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, FedPrefError), result.output
    return result.exception


def test_two_clients_never_share_a_gpu() -> None:
    # A smaller share would start several clients on one GPU, which runs out of memory.
    gpu = simulation(Path(ROOT) / "federation.toml", "gpu")
    assert float(gpu["client-resources-num-gpus"]) == 1.0


@pytest.fixture(autouse=True)
def no_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("Flower was started")

    monkeypatch.setattr("fedpref.launch.LocalFlower.__enter__", fail)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_missing_sites_and_a_missing_model_are_told_together(command: str, tmp_path: Path) -> None:
    error = refused(
        command, "--app", ROOT, "--set", "sites=/nowhere/at/all", "--set", "model.path=./nothing"
    )
    assert isinstance(error, FedPrefErrors)
    assert [part.key for part in error.errors] == ["sites", "model.path"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_wrong_strategy_is_told(command: str) -> None:
    error = refused(command, "--app", ROOT, "--set", "sites=x", "--set", "strategy=fedraw")
    parts = error.errors if isinstance(error, FedPrefErrors) else (error,)
    assert isinstance(parts[0], ConfigError)
    assert "feddraw" in str(error)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (["quorum=7", "min-sites=9"], ["quorum", "min-sites"]),
        (["quorum=7"], ["quorum"]),
        (["strategy=Krum", "strategy-options=num_malicious_nodes=2"], ["strategy"]),
    ],
)
def test_more_sites_asked_for_than_there_are_is_told_before_flower_starts(
    settings: list[str], keys: list[str]
) -> None:
    given = [part for setting in settings for part in ("--set", setting)]
    error = refused("run", "--app", ROOT, *given, "--nodes", "6")
    parts = error.errors if isinstance(error, FedPrefErrors) else (error,)
    assert [part.key for part in parts] == keys


@pytest.mark.parametrize("seeds", ["x", "1,1", "-1", ""])
def test_bad_seeds_leave_nothing(seeds: str, tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name in ("a", "b"):
        report = Report(f"{name}1", f"p{name}", "dev", "Text.")
        write_site(
            tmp_path / "sites" / name,
            name=name,
            reports=[report],
            annotations=[Annotation(report.report_id, Structure())],
        )
    error = refused("compare", "--app", ROOT, "--set", "sites=sites", f"--seeds={seeds}")
    assert "seed" in str(error)
    assert [path.name for path in tmp_path.rglob("*") if "compare" in path.name] == []


def test_broken_sites_are_told_before_flower_starts(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        report = Report(f"{name}1", f"p{name}", "dev", "Text.")
        write_site(
            tmp_path / "sites" / name,
            name=f"site-{name}",
            reports=[report],
            annotations=[Annotation(report.report_id, Structure())],
        )
    (tmp_path / "sites" / "b" / "reports.jsonl").write_text("{")
    error = refused("run", "--app", ROOT, "--set", "sites=sites")
    assert isinstance(error, FedPrefErrors)
    assert [part.site for part in error.errors] == ["site-a", "b", "site-c"]
    assert "no pairs" in error.errors[0].what
    assert "not valid JSON" in error.errors[1].what


def test_summary_tells_a_comparison_and_no_run_from_an_open_run(tmp_path: Path) -> None:
    for name, files in (("x", ["experiment.json"]), ("open", ["config.json"]), ("empty", [])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")
    told = {name: refused("summary", str(tmp_path / name)) for name in ("x", "open", "empty")}
    assert all(isinstance(error, RoundError) for error in told.values())
    assert "fedpref report" in told["x"].fix
    assert "resume" in told["open"].fix
    assert "no run" in told["empty"].what


def test_site_check_finds_two_sites_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_site(
            tmp_path / folder,
            name="same",
            reports=[Report("r", "p", "dev", "Text.")],
            annotations=[Annotation("r", Structure())],
        )
    error = refused("site", "check", str(tmp_path))
    assert isinstance(error, DataError)
    assert error.site == "same"
    shown = CliRunner().invoke(app, ["site", "check", str(tmp_path), "--json"])
    assert shown.exit_code == 1
    assert len(json.loads(shown.stdout)["problems"]) == 1
