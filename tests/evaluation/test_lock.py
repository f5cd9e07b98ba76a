"""The lock of a test set: once, for good, also after a crash and between processes."""

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from fedpref.errors import ResumeError
from fedpref.evaluation.lock import complete, open_lock

HASH = "ab" * 32


def test_a_second_evaluation_is_refused_whatever_run_asks(tmp_path: Path) -> None:
    lock = open_lock(tmp_path / "locks", HASH, "first-run")
    assert lock.path == tmp_path / "locks" / f"{HASH}.json"
    before = json.loads(lock.path.read_text())
    assert (before["run"], before["result"], before["earlier"]) == ("first-run", None, [])
    complete(lock, {"effect": 0.03})
    after = json.loads(lock.path.read_text())
    assert after == {**before, "result": {"effect": 0.03}}
    for run in ("first-run", "second-run"):
        with pytest.raises(ResumeError, match="was evaluated before") as caught:
            open_lock(tmp_path / "locks", HASH, run)
        for part in (str(lock.path), before["created"], "'first-run'"):
            assert part in str(caught.value)
    assert json.loads(lock.path.read_text()) == after
    assert open_lock(tmp_path / "locks", "cd" * 32, "second-run").earlier == []


def test_a_crash_is_told_apart_and_set_aside_openly(tmp_path: Path) -> None:
    first = open_lock(tmp_path, HASH, "crashed")
    with pytest.raises(ResumeError, match="begun and left no result") as caught:
        open_lock(tmp_path, HASH, "again")
    message = str(caught.value)
    for part in (str(first.path), str(first.content["created"]), "'crashed'", "spent"):
        assert part in message
    (aside,) = re.findall(r"to (\S+\.json) and", message)
    first.path.rename(tmp_path / aside)
    second = open_lock(tmp_path, HASH, "again")
    assert second.earlier == [
        {
            "file": aside,
            "run": "crashed",
            "created": first.content["created"],
            "had_result": False,
        }
    ]
    # A finished lock that somebody moved away is not forgotten either.
    complete(second, {"effect": 1})
    with pytest.raises(ResumeError):
        open_lock(tmp_path, HASH, "third")
    second.path.rename(tmp_path / f"{HASH}.mine.json")
    third = open_lock(tmp_path, HASH, "third")
    assert {row["file"]: row["had_result"] for row in third.earlier} == {
        aside: False,
        f"{HASH}.mine.json": True,
    }
    with pytest.raises(ResumeError, match=r"unfinished-3\.json"):
        open_lock(tmp_path, HASH, "fourth")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "other", "result": 1}'])
def test_a_damaged_lock_locks_all_the_same(tmp_path: Path, content: str) -> None:
    path = tmp_path / f"{HASH}.json"
    path.write_text(content)
    with pytest.raises(ResumeError, match="missing or cannot be read") as caught:
        open_lock(tmp_path, HASH, "run")
    assert str(path) in str(caught.value)
    assert path.read_text() == content


def test_the_result_goes_only_into_the_lock_that_was_made(tmp_path: Path) -> None:
    lock = open_lock(tmp_path, HASH, "run")
    complete(lock, {"effect": 1})
    with pytest.raises(ResumeError, match="was changed"):
        complete(lock, {"effect": 2})
    assert json.loads(lock.path.read_text())["result"] == {"effect": 1}
    lock.path.unlink()
    with pytest.raises(ResumeError, match="missing or cannot be read"):
        complete(lock, {"effect": 2})
    other = open_lock(tmp_path, HASH, "run")
    with pytest.raises(ResumeError, match="was changed"):
        complete(lock, {"effect": 2})
    complete(other, {"effect": 3})
    assert [path.name for path in tmp_path.iterdir()] == [lock.path.name]


def contend(folder: Path, number: int, start: Any, wins: Any) -> None:
    start.wait()
    try:
        open_lock(folder, HASH, f"run-{number}")
    except ResumeError:
        return
    wins.put(number)


def test_of_two_processes_one_evaluates(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, wins = context.Event(), context.Queue()
    processes = [
        context.Process(target=contend, args=(tmp_path, number, start, wins)) for number in range(4)
    ]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    winner = wins.get(timeout=5)
    assert wins.empty()
    assert json.loads((tmp_path / f"{HASH}.json").read_text())["run"] == f"run-{winner}"
