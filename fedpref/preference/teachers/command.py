"""A site's existing labeller as a teacher: a command that reads a report and prints JSON.

The command runs once per report, with the report on standard input (UTF-8) and its completion on
standard output. What it prints never becomes part of an error or a log.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from fedpref.errors import ConfigError, DataError
from fedpref.hashing import digest, digest_file

TIMEOUT: Final = 60.0  # seconds per report
WORKERS: Final = 2

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)=(.+)", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class CommandTeacher:
    """A teacher that runs `argv` once per report, at most `workers` at a time."""

    name: str
    argv: tuple[str, ...]
    timeout: float = TIMEOUT
    workers: int = WORKERS

    @cached_property
    def digest(self) -> str:
        """Return the content hash of the command line and of the files that it names."""
        program = shutil.which(self.argv[0])
        files = [program, *self.argv[1:]]
        hashes = [digest_file(Path(f)) if f and Path(f).is_file() else None for f in files]
        return digest([self.name, list(self.argv), hashes])

    def extract(self, texts: Sequence[str]) -> list[str]:
        """Return the command's output per report text, in order.

        Raises DataError naming the teacher, and the exit status or the timeout, at the first
        report for which the command fails; commands that have not started then do not start.
        """
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            futures = [pool.submit(self._run, text) for text in texts]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _run(self, text: str) -> str:
        try:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that a timeout also ends what the command started
            )
        except OSError as error:
            raise DataError(
                f"the teacher {self.name!r} cannot be started ({error.strerror})",
                fix="check the path and the permissions of its command",
            ) from None
        with process:
            try:
                output, _ = process.communicate(text.encode("utf-8", "replace"), self.timeout)
            except subprocess.TimeoutExpired:
                _end(process)
                raise DataError(
                    f"the teacher {self.name!r} gave no answer within {self.timeout:g} s",
                    fix="give it more time (--timeout) or correct its command",
                ) from None
            except BaseException:
                _end(process)
                raise
        if process.returncode != 0:
            raise DataError(
                f"the teacher {self.name!r} ended with exit status {process.returncode}",
                why="an answer counts only with exit status 0",
                fix="run its command by hand on one report",
            )
        return output.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def command_teacher(
    line: str, *, timeout: float = TIMEOUT, workers: int = WORKERS
) -> CommandTeacher:
    """Return the teacher of a command line, `./labeller --json` or `name=./labeller --json`.

    Without a name it is called after the program's file. The line is split as a shell would, but
    no shell runs. Raises ConfigError if it cannot be split or names no program.
    """
    named = _NAME.fullmatch(line.strip())
    name, rest = named.groups() if named else ("", line)
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        raise ConfigError(
            f"the teacher's command line cannot be split ({error})", fix="balance its quotes"
        ) from None
    if not argv or shutil.which(argv[0]) is None:
        program = argv[0] if argv else ""
        raise ConfigError(
            f"the teacher's command {program!r} is no program that can be run",
            fix="give the path of an executable file, or a name on PATH",
        )
    return CommandTeacher(name or _UNSAFE.sub("-", Path(argv[0]).stem), argv, timeout, workers)
