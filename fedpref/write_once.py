"""A file that can be made only once, whoever tries: what a secret and a lock need."""

import os
import tempfile
from pathlib import Path


def write_once(path: Path, data: bytes, *, mode: int = 0o644) -> bool:
    """Write a file that does not exist yet; return False, and change nothing, if it does.

    Of several processes exactly one gets True. The file appears whole, on disk, with these
    permissions; a crash leaves none, or all of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            # A link, unlike a rename, never replaces what is there.
            path.hardlink_to(part)
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links: as exclusive, but a crash can leave it cut short.
            return _create(path, data, mode)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def _create(path: Path, data: bytes, mode: int) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
