"""`fedpref compare` up to where Flower starts: what is compared, over what, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedpref.cli import compare as command
from fedpref.data import Annotation, Report, write_site
from fedpref.demo.sites import DEFAULT_SEED
from fedpref.errors import FedPrefError
from fedpref.task import Structure

app = typer.Typer()
app.command()(command.compare)


def write_sites(folder: Path) -> Path:
    for name in ("north", "south"):
        report = Report(f"{folder.name}-{name}", f"p-{name}", "dev", "No effusion.")
        note = Annotation(report.report_id, Structure())
        write_site(folder / name, name=name, reports=[report], annotations=[note])
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be run: the sites of each partition, seeds, arms."""
    found: list[Any] = []

    def run(configs: Any, seeds: Any, arms: Any, **_: Any) -> None:
        found.append(([c.sites for c in configs], seeds, [arm.name for arm in arms]))

    def make(root: Path | None = None, *, seed: int) -> Path:
        return Path(f"demo-{seed}")

    monkeypatch.setattr(command, "run_comparison", run)
    monkeypatch.setattr("fedpref.demo.sites.ensure_demo_sites", make)
    return found


def call(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None:
        raise result.exception


def refused(*arguments: object) -> str:
    with pytest.raises(FedPrefError) as caught:
        call(*arguments)
    return str(caught.value)


def test_without_options_the_three_arms_over_the_demos_sites(started: list[Any]) -> None:
    call()
    seeds = [20260713, 20260714, 20260715]
    assert started == [([f"demo-{DEFAULT_SEED}"], seeds, ["fedpref", "local", "central"])]


def test_strategies_over_partitions_of_the_demo(started: list[Any]) -> None:
    call("--strategies", "uniform,feddraw(eta=2)", "--partitions", 3, "--seeds", "5")
    ((sites, seeds, arms),) = started
    assert arms == ["uniform", "feddraw(eta=2)"]
    assert seeds == [5]
    drawn = [int(name.removeprefix("demo-")) for name in sites]
    assert drawn[0] == DEFAULT_SEED
    # A partition draws with its seed and the two after it: none of them twice.
    assert len({seed + split for seed in drawn for split in range(3)}) == 9


def test_folders_are_partitions(tmp_path: Path, started: list[Any]) -> None:
    one, two = write_sites(tmp_path / "one"), write_sites(tmp_path / "two")
    call("--sites", one, "--sites", two)
    call("--set", f"sites={one}")
    assert [sites for sites, *_ in started] == [[str(one), str(two)], [str(one)]]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, started: list[Any]) -> None:
    one = write_sites(tmp_path / "one")
    said = refused(
        "--strategies", "uniform,fedraw,svd(x=1)", "--seeds", "5,five", "--sites", one,
        "--sites", tmp_path / "none", "--set", "roundz=2", "--set", "strategy=svd",
    )  # fmt: skip
    for part in (
        "fedraw: there is no strategy",
        "svd has no option 'x'",
        "--seeds '5,five'",
        "roundz: unknown key",
        "strategy and --strategies were given",
    ):
        assert part in said
    said = refused("--strategies", "uniform,svd(x=1)", "--sites", tmp_path / "none")
    assert "svd has no option 'x'" in said
    assert "there is no site directory in" in said
    assert started == []


@pytest.mark.parametrize("how", ["--sites", "--set"])
def test_partitions_are_of_the_demo(tmp_path: Path, started: list[Any], how: str) -> None:
    one = write_sites(tmp_path / "one")
    said = refused("--partitions", 2, how, one if how == "--sites" else f"sites={one}")
    assert "fedpref partition --seed" in said


def test_one_folder_twice_is_refused(tmp_path: Path, started: list[Any]) -> None:
    one = write_sites(tmp_path / "one")
    again = tmp_path / "one" / ".." / "one"
    assert refused("--sites", one, "--sites", again).count("was given more than once") == 1


def test_the_strategy_of_an_arm_is_checked(started: list[Any]) -> None:
    assert "there is no strategy 'fedraw'" in refused("--set", "strategy=fedraw")
    assert "the arm Local is always run" in refused("--set", "strategy=local")
