"""Homes of local Flowers: one each, and nothing of a killed predecessor goes on running."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpref.errors import RoundError
from fedpref.launch import LocalFlower

APP = Path(__file__).parents[1]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def pretended_superlink(home: Path, port: int) -> subprocess.Popen[bytes]:
    """A process that looks like a SuperLink of this home, and only sleeps."""
    code = "import sys, time; print('ready', flush=True); time.sleep(120)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "flower-superlink", "--port", str(port)],
        env={**os.environ, "FLWR_HOME": str(home)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_two_at_a_time_have_homes_of_their_own(tmp_path: Path) -> None:
    with LocalFlower(tmp_path, app=APP) as one, LocalFlower(tmp_path, app=APP) as other:
        assert one.home != other.home
        assert one.port != other.port
    with LocalFlower(tmp_path, app=APP) as again:
        assert again.home == one.home


def test_what_a_killed_predecessor_left_is_ended_in_every_home(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    for number, port in ((0, 45001), (1, 45002)):
        home = tmp_path / f"flower-{number}"
        home.mkdir()
        (home / "port").write_text(str(port))
        started.append(pretended_superlink(home, port))
    with LocalFlower(tmp_path, app=APP):
        for process in started:
            process.wait(timeout=20)


def test_somebody_elses_superlink_on_that_port_is_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    home = tmp_path / "flower-0"
    home.mkdir()
    (home / "port").write_text("45003")
    started.append(pretended_superlink(tmp_path / "elsewhere", 45003))
    with LocalFlower(tmp_path, app=APP):
        assert started[0].poll() is None


def test_a_living_neighbour_is_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with LocalFlower(tmp_path, app=APP) as neighbour:
        started.append(pretended_superlink(neighbour.home, neighbour.port))
        with LocalFlower(tmp_path, app=APP):
            assert started[0].poll() is None
    started[0].wait(timeout=20)


def test_a_superlink_that_is_slow_to_start_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{"error-message": "Failed to start local SuperLink within 15s."}, {"run-id": "7"}]
    asked: list[str] = []

    def answer(self: LocalFlower, *arguments: str) -> dict[str, str]:
        asked.append(arguments[0])
        return answers[len(asked) - 1]

    monkeypatch.setattr(LocalFlower, "_json", answer)
    flower = LocalFlower(tmp_path, app=tmp_path)
    assert flower.submit({}, {"num-supernodes": 2}) == "7"
    answers, asked = [{"error-message": "no such app"}], []
    with pytest.raises(RoundError, match="no such app"):
        flower.submit({}, {})  # every other refusal is final
    assert len(asked) == 1
