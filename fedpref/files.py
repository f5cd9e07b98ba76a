"""Reading and writing files so that nothing half-written stays."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one compact JSON object a line, atomically."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
            stream.write("\n")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSON-lines file; blank lines are skipped.

    Raises DataError naming file and line if the file is missing, is not UTF-8, or a line is not one
    JSON object. The line's content is never part of the message.
    """
    try:
        # Not splitlines(): a report may hold U+2028, which is no line end in JSON lines.
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(
            f"the file cannot be read ({error.strerror})",
            file=path,
            fix="create it, or correct the path",
        ) from None
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
        if not raw.strip():
            continue
        try:
            row = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
            raise DataError(
                f"the line is {reason}",
                file=path,
                line=number,
                fix="write one JSON object a line, in UTF-8",
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"the line is a JSON {type(row).__name__}, not an object",
                file=path,
                line=number,
                fix='write one JSON object a line, {"key": value, …}',
            )
        yield number, row
