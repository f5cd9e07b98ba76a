"""The lock of a test set: one evaluation, of one run, for good.

`<folder>/<hash of the test set>.json` is written before the first report is answered, and gets the
result afterwards. It is keyed to the test set, not to the run: another run does not open it again.
"""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedpref import __version__
from fedpref.errors import ResumeError
from fedpref.files import atomic_write
from fedpref.write_once import write_once

_KIND: Final = "test-lock"


@dataclass(frozen=True)
class Lock:
    """A lock that this process holds. `earlier` lists attempts that were set aside."""

    path: Path
    content: Mapping[str, Any]

    @property
    def earlier(self) -> list[dict[str, Any]]:
        """Return run and time of every earlier attempt on this test set that left no result."""
        return list(self.content["earlier"])


def open_lock(folder: Path, test_hash: str, run: str) -> Lock:
    """Return the lock of a test set, made now; of several processes only one gets it.

    `run` names what is evaluated. Raises ResumeError, with the lock's file, time and run, if the
    test set was evaluated before, or if an evaluation was begun and left no result.
    """
    path = folder / f"{test_hash}.json"
    content = {
        "kind": _KIND,
        "test": test_hash,
        "run": run,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "fedpref": __version__,
        # Which process holds the lock: a file that was put in its place has another.
        "holder": secrets.token_hex(8),
        "earlier": _set_aside(folder, test_hash),
        "result": None,
    }
    if not write_once(path, _encoded(content)):
        raise _refusal(path)
    return Lock(path, content)


def complete(lock: Lock, result: Mapping[str, Any]) -> None:
    """Write the result, a JSON object, into the lock.

    Raises ResumeError if the file is no longer the lock that was made, or has a result already.
    """
    now = _read(lock.path)
    if now != lock.content:
        raise ResumeError(
            "the lock of the test set was changed while the test set was evaluated",
            why=f"{_told(now)}; it was made on {lock.content['created']} for the run "
            f"{lock.content['run']!r}, without a result",
            fix="find out who changed it; this evaluation's result was not written",
            file=lock.path,
        )
    atomic_write(lock.path, _encoded({**lock.content, "result": dict(result)}))


def _refusal(path: Path) -> ResumeError:
    content = _read(path)
    if content is not None and content.get("result") is not None:
        return ResumeError(
            f"this test set was evaluated before: {_told(content)}",
            why="a test set is evaluated once, after the round was selected",
            fix="the result is in the lock file; another claim needs another test set",
            file=path,
        )
    number = len(_set_aside(path.parent, path.stem)) + 1
    aside = f"{path.stem}.unfinished-{number}.json"
    return ResumeError(
        f"an evaluation of this test set was begun and left no result: {_told(content)}",
        why="it may still be running, or have shown somebody numbers before it ended",
        fix="wait if it is running. If it ended before any number was seen, rename the lock file "
        f"to {aside} and start again: the new lock then lists this attempt, and so must whoever "
        "reports the result. If numbers were seen, the test set is spent",
        file=path,
    )


def _set_aside(folder: Path, test_hash: str) -> list[dict[str, Any]]:
    """Return what is known of the attempts whose locks were renamed, oldest first."""
    earlier = []
    for path in sorted(folder.glob(f"{test_hash}.*.json")):
        content = _read(path) or {}
        earlier.append(
            {
                "file": path.name,
                "run": content.get("run"),
                "created": content.get("created"),
                "had_result": content.get("result") is not None,
            }
        )
    return sorted(earlier, key=lambda row: (str(row["created"]), str(row["file"])))


def _told(content: Mapping[str, Any] | None) -> str:
    if content is None:
        return "the lock file is missing or cannot be read"
    return f"locked on {content.get('created')} for the run {content.get('run')!r}"


def _read(path: Path) -> dict[str, Any] | None:
    """Return a lock's content; None for a file that is no lock. It locks all the same."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("kind") == _KIND else None


def _encoded(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
