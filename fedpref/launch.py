"""Starting a simulated Flower run, following it, and leaving nothing behind.

`flwr run` starts a managed local SuperLink that never ends and whose exit status says nothing about
the run. Here the SuperLink has a home and a port of its own, success is the run's recorded status,
and on leaving, exactly the processes that were started are ended.
"""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from fedpref.config import RunConfig
from fedpref.errors import RoundError
from fedpref.federation.progress import LOG_MARK
from fedpref.files import try_lock

CONNECTION = "local"
_STOP_TIMEOUT = 15.0
_PORT_FILE = "port"
_LOCK_FILE = ".lock"
# On a busy machine Flower's SuperLink may take longer than the 15 s that `flwr run` gives it.
_STARTS = 3
_SLOW_START = "Failed to start local SuperLink"

Scalar = bool | int | float | str


def toml_pairs(values: Mapping[str, Scalar]) -> list[str]:
    """Return `key = value` lines with quoted dotted keys left as tables (TOML v1.0)."""
    # JSON's literals for strings, booleans and finite numbers are TOML's as well.
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


class LocalFlower:
    """A managed local SuperLink under an FLWR_HOME of its own and a free port; a context manager.

    The home is the first `flower-<n>` under `root` that nobody uses at the moment; it holds
    Flower's state and logs. What killed predecessors left running under `root` is ended first.
    Leaving the block ends the SuperLink and everything it started, and nothing else.
    """

    def __init__(self, root: Path, *, app: Path) -> None:
        self.root = root.resolve()
        self.app = app.resolve()
        self.home = self.root
        self.port = 0
        self._lock: IO[str] | None = None
        self._env: dict[str, str] = {}

    def __enter__(self) -> Self:
        for home in sorted(self.root.glob("flower-*")):
            _end_leftover(home)
        self.home, self._lock = _free_home(self.root)
        self.port = _free_port()
        (self.home / _PORT_FILE).write_text(str(self.port))
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n'
            f'[superlink.{CONNECTION}]\naddress = ":local-in-memory:"\n'
        )
        scripts = str(Path(sys.executable).parent)
        self._env = {
            **os.environ,
            "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
            "FLWR_HOME": str(self.home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            # Resolving the app's dependencies anew for each run would fetch a CUDA build of torch.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_DEDUP_LOGS": "0",
            "PYTHONUNBUFFERED": "1",
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        (self.home / _PORT_FILE).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def run(
        self,
        config: RunConfig,
        federation: Mapping[str, Scalar],
        *,
        on_progress: Callable[[str], None],
        on_log: Callable[[str], None] = lambda line: None,
    ) -> Path:
        """Run the app to its end and return its run directory; RoundError unless it completed.

        Each line that the coordinator says goes to `on_progress`, every other one to `on_log`.
        """
        flat, run_dir = _resolved(config)
        run_id = self.submit(flat, federation)
        last = ""
        for line in self.follow(run_id):
            mark = line.find(LOG_MARK)
            if mark >= 0:
                on_progress(line[mark + len(LOG_MARK) :].rstrip())
            else:
                on_log(line.rstrip())
            last = line if line.strip() else last
        status, details = self.wait(run_id)
        if status != "finished:completed":
            begun = (run_dir / "config.json").exists()
            resume = f"; resume with --set 'resume=\"{run_dir}\"'" if begun else ""
            raise RoundError(
                f"the run ended as {status}: {details or last.strip() or 'no details'}",
                fix=f"--verbose shows the whole log{resume}",
            )
        return run_dir

    def submit(self, run_config: Mapping[str, Scalar], federation: Mapping[str, Scalar]) -> str:
        """Submit the app and return Flower's run id; RoundError if Flower refuses it."""
        config = self.home / "run-config.toml"
        config.write_text("\n".join(toml_pairs(run_config)) + "\n", encoding="utf-8")
        for _ in range(_STARTS):
            answer = self._json(
                "run",
                str(self.app),
                CONNECTION,
                "--run-config",
                str(config),
                "--federation-config",
                " ".join(f"{key}={value}" for key, value in federation.items()),
            )
            if run_id := answer.get("run-id"):
                return str(run_id)
            reason = str(answer.get("error-message") or answer.get("error") or answer)
            if _SLOW_START not in reason:
                break
        raise RoundError(f"Flower refused the run: {reason}")

    def follow(self, run_id: str) -> Iterator[str]:
        """Yield the run's log lines until the run has ended."""
        command = [self._flwr(), "log", run_id, CONNECTION, "--stream"]
        with subprocess.Popen(
            command,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                yield from process.stdout
            finally:
                process.terminate()

    def status(self, run_id: str) -> tuple[str, str]:
        """Return Flower's status of the run, such as `finished:completed`, and its details."""
        runs = self._json("list", CONNECTION, "--run-id", run_id).get("runs") or [{}]
        return str(runs[0].get("status", "unknown")), str(runs[0].get("status-details") or "")

    def wait(self, run_id: str, poll: float = 1.0) -> tuple[str, str]:
        """Return the final status of the run and its details."""
        while True:
            status, details = self.status(run_id)
            if status.startswith("finished") or status == "unknown":
                return status, details
            time.sleep(poll)

    def stop(self) -> None:
        """End the SuperLink of this home and port and all its descendants (Ray's are some)."""
        _end_superlink(self.home, self.port)

    def _json(self, *arguments: str) -> dict[str, Any]:
        """Return what `flwr … --format json` printed; with it every error exits with 0."""
        result = subprocess.run(
            [self._flwr(), *arguments, "--format", "json"],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        start = result.stdout.find("{")
        try:
            answer = json.loads(result.stdout[start:]) if start >= 0 else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            output = (result.stdout + result.stderr).strip() or f"exit status {result.returncode}"
            raise RoundError(
                f"`flwr {arguments[0]}` gave no answer: {output}",
                fix=f"read {self.home / 'local-superlink' / 'superlink.log'}",
            )
        return answer

    def _flwr(self) -> str:
        found = shutil.which("flwr", path=self._env["PATH"])
        if found is None:
            raise RoundError("the command `flwr` is missing", fix="pip install 'fedpref[sim]'")
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free_home(root: Path) -> tuple[Path, IO[str]]:
    """Return the first home under `root` that no living process holds, and the lock on it."""
    for number in itertools.count():
        home = root / f"flower-{number}"
        lock = try_lock(home / _LOCK_FILE)
        if lock is not None:
            return home, lock
    raise AssertionError("there is always another number")


def _end_leftover(home: Path) -> None:
    """End what a process that was killed has left running in its home."""
    lock = try_lock(home / _LOCK_FILE)
    if lock is None:
        return
    with lock:
        noted = home / _PORT_FILE
        port = noted.read_text() if noted.exists() else ""
        if port.isdecimal():
            _end_superlink(home, int(port))
        noted.unlink(missing_ok=True)


def _end_superlink(home: Path, port: int) -> None:
    _end([process for root in _superlinks(port, home) for process in _family(root)])


def _resolved(config: RunConfig) -> tuple[dict[str, Scalar], Path]:
    """Return the flat configuration with absolute paths and an id, and the run's directory.

    A path is meant from here; the SuperLink and Ray's workers have other working folders.
    """
    flat: dict[str, Scalar] = config.to_flat()
    if config.resume:
        run_dir = Path(config.resume).resolve()
        flat["resume"] = str(run_dir)
    else:
        run_id = config.run_id or time.strftime("%Y%m%d-%H%M%S-") + config.digest[:8]
        run_dir = Path(config.runs_dir).resolve() / run_id
        flat |= {"runs-dir": str(run_dir.parent), "run-id": run_id}
    if config.sites != "demo":
        flat["sites"] = str(Path(config.sites).resolve())
    for key in ("model.path", "ontology"):
        if flat[key] and Path(str(flat[key])).exists():
            flat[key] = str(Path(str(flat[key])).resolve())
    return flat, run_dir


def _superlinks(port: int, home: Path) -> list[psutil.Process]:
    """Return the SuperLink processes that were started with this port for this home."""
    ending = ["--port", str(port)]
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = process.info["cmdline"] or []
        if (
            any("flower-superlink" in word for word in words)
            and any(words[i : i + 2] == ending for i in range(len(words)))
            and (process.info["environ"] or {}).get("FLWR_HOME") == str(home)
        ):
            found.append(process)
    return found


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]


def _end(processes: Sequence[psutil.Process]) -> None:
    """Ask the processes to end, then make them."""
    for order in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(order)
        _, processes = psutil.wait_procs(processes, timeout=_STOP_TIMEOUT)
