"""Reading and writing files so that nothing half-written stays."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedpref.errors import DataError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def atomic_write(path: Path, data: str | bytes) -> None:
    """Write `data` (text as UTF-8) to `path`; readers see the old file or the whole new one."""
    with atomic_path(path) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it becomes `path` only if the block succeeds.

    An existing folder at `path` is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    part.chmod(0o755)
    try:
        yield part
        if path.exists():
            old = part.with_suffix(".old")
            path.replace(old)
            part.replace(path)
            shutil.rmtree(old)
        else:
            part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fedpref_home() -> Path:
    """Return the folder for Flower's homes and the demo's sites: $FEDPREF_HOME or ./.fedpref."""
    return Path(os.environ.get("FEDPREF_HOME", ".fedpref"))


def try_lock(path: Path) -> IO[str] | None:
    """Return an open file that holds the lock on `path`, None if another process holds it.

    Closing the file, or the end of the process however it comes, gives the lock back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one compact JSON object a line, atomically."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
            stream.write("\n")


def read_jsonl(
    path: Path, *, on_error: Callable[[DataError], None] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSON-lines file; blank lines are skipped.

    A missing file, or a line that is not UTF-8 or not one JSON object, is a DataError with file and
    line, never with the content. It is raised, or given to `on_error` and the line skipped.
    """
    report = _raise if on_error is None else on_error
    try:
        # Not splitlines(): a report may hold U+2028, which is no line end in JSON lines.
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        what = f"the file cannot be read ({error.strerror})"
        report(DataError(what, file=path, fix="create it, or correct the path"))
        return
    for number, raw in enumerate(lines, start=1):
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"), object_pairs_hook=_without_repeats)
            wrong = "" if isinstance(row, dict) else f"a JSON {type(row).__name__}, not an object"
        except UnicodeDecodeError:
            wrong = "not UTF-8"
        except _RepeatedKey:
            wrong = "an object that names one key twice"
        except (ValueError, RecursionError):
            wrong = "not valid JSON"
        if wrong:
            fix = "write one JSON object a line, in UTF-8"
            report(DataError(f"the line is {wrong}", file=path, line=number, fix=fix))
            continue
        yield number, row


class _RepeatedKey(ValueError):
    """Python's parser would silently keep the last of two values."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise _RepeatedKey
    return row


def _raise(error: DataError) -> None:
    raise error from None
