"""Lanes: what runs beside what, what is skipped, and that an error ends both."""

import threading
from pathlib import Path
from typing import Any

import pytest

from fedpref.config import RunConfig
from fedpref.errors import RoundError
from fedpref.experiment import lanes
from fedpref.experiment.lanes import run_jobs
from fedpref.experiment.plan import Experiment, open_experiment


class FakeFlower:
    """Completes each run at once; `failing` names the run that fails instead."""

    ran: list[tuple[str, int, str]]
    failing: str

    def __init__(self, root: Path, *, app: Path) -> None:
        self.stopped = threading.Event()

    def __enter__(self) -> "FakeFlower":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        self.stopped.set()

    def run(self, config: RunConfig, federation: Any, **_: Any) -> None:
        name = Path(config.resume).name if config.resume else config.run_id
        if name == self.failing:
            raise RoundError("broken")
        if self.failing and not name.startswith("central"):
            # Long runs: they end when their Flower is stopped.
            assert self.stopped.wait(20)
            raise RoundError("stopped")
        self.ran.append((name, federation["num-supernodes"], "resumed" if config.resume else ""))


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> type[FakeFlower]:
    monkeypatch.setattr(FakeFlower, "ran", [], raising=False)
    monkeypatch.setattr(FakeFlower, "failing", "", raising=False)
    monkeypatch.setattr(lanes, "LocalFlower", FakeFlower)
    return FakeFlower


def go(experiment: Experiment, said: list[str], *, parallel: bool = True) -> None:
    run_jobs(
        experiment,
        home=Path("home"),
        app=Path("app"),
        federation={"client-resources-num-cpus": 1},
        parallel=parallel,
        say=said.append,
        on_log=said.append,
    )


@pytest.fixture
def experiment(tmp_path: Path, config: RunConfig) -> Experiment:
    return open_experiment(tmp_path / "x", config, [5, 6]).begin()


def test_every_run_once_with_its_number_of_nodes(
    experiment: Experiment, flower: type[FakeFlower]
) -> None:
    go(experiment, [], parallel=False)
    assert flower.ran == [
        ("fedpref-5", 2, ""), ("local-5", 2, ""), ("central-5", 1, ""),
        ("fedpref-6", 2, ""), ("local-6", 2, ""), ("central-6", 1, ""),
    ]  # fmt: skip


def test_the_same_runs_in_two_lanes(experiment: Experiment, flower: type[FakeFlower]) -> None:
    go(experiment, [])
    assert sorted(flower.ran) == sorted(
        (f"{arm}-{seed}", 1 if arm == "central" else 2, "")
        for arm in ("fedpref", "local", "central")
        for seed in (5, 6)
    )
    others = [name for name, *_ in flower.ran if not name.startswith("central")]
    assert others == ["fedpref-5", "local-5", "fedpref-6", "local-6"]


def test_complete_runs_are_skipped_and_begun_ones_go_on(
    experiment: Experiment, flower: type[FakeFlower]
) -> None:
    jobs = {job.run_dir.name: job.run_dir for job in experiment.jobs()}
    for name in ("fedpref-5", "central-5", "local-5"):
        jobs[name].mkdir(parents=True)
        (jobs[name] / "config.json").touch()
    for name in ("fedpref-5", "central-5"):
        (jobs[name] / "summary.json").touch()
    go(experiment, [], parallel=False)
    assert flower.ran[0] == ("local-5", 2, "resumed")
    assert [name for name, *_ in flower.ran] == ["local-5", "fedpref-6", "local-6", "central-6"]


def test_an_error_in_one_lane_ends_the_other(
    experiment: Experiment, flower: type[FakeFlower]
) -> None:
    flower.failing = "central-5"
    with pytest.raises(RoundError, match="broken"):
        go(experiment, [])
    assert flower.ran == []


def test_only_what_a_person_wants_to_see_is_passed_on() -> None:
    said: list[str] = []
    lines = [
        "round 0: SFT at 2 sites",
        "round 0: site a trained 3 pairs (1.0 s)",
        "round 0: client mean 50.00 %, worst site 40.00 %, 3.0 s",
        "round 1: site b alone 50.00 %, 3.0 s",
        "round 1: site b is left out: why",
        "round 1: site b: no reply within round-deadline = 5 s",
        "a site cannot take part: why",
    ]
    for line in lines:
        lanes._tell(said.append, "arm", line)
    assert said == [f"arm: {line}" for line in lines[2:]]
