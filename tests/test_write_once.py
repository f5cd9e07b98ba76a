"""A file that only one of several processes can make."""

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from fedpref.write_once import write_once


def contend(path: Path, number: int, start: Any, wins: Any) -> None:
    start.wait()
    if write_once(path, f"{number}".encode() * 10_000):
        wins.put(number)


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)


@pytest.mark.parametrize("links", [True, False])
def test_the_first_writes_and_the_second_changes_nothing(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        no_links(monkeypatch)
    path = tmp_path / "new" / "file"
    assert write_once(path, b"first", mode=0o600)
    assert not write_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("links", [True, False])
def test_of_several_processes_one_wins(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        no_links(monkeypatch)
    context = multiprocessing.get_context("fork")
    for attempt in range(2):
        start, wins = context.Event(), context.Queue()
        path = tmp_path / f"file-{attempt}"
        processes = [
            context.Process(target=contend, args=(path, number, start, wins)) for number in range(4)
        ]
        for process in processes:
            process.start()
        start.set()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        winner = wins.get(timeout=5)
        assert wins.empty()
        assert path.read_bytes() == f"{winner}".encode() * 10_000


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_once(tmp_path / "file", b"content")
    assert not list(tmp_path.iterdir())
