"""Real Flower processes on loopback, each ended by its own pid."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from fedpref.demo.sites import DEFAULT_SEED, DemoSettings, add_pairs, write_demo_sites

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="session")
def write_two_sites() -> Callable[..., Path]:
    """What fills a folder with two small demo sites with pairs, and returns it."""
    settings = DemoSettings(train_reports=60, dev_reports=40, test_reports=24)

    def write(folder: Path, *, seed: int = DEFAULT_SEED) -> Path:
        for extra in write_demo_sites(folder, settings=settings, seed=seed)[2:]:
            shutil.rmtree(extra)
        add_pairs(folder)
        return folder

    return write


@pytest.fixture(scope="session")
def made(write_two_sites: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small sites with pairs; tests copy them."""
    return write_two_sites(tmp_path_factory.mktemp("made"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """A SuperLink and its SuperNodes as separate processes with separate working folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        home = folder / "superlink"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "dev"\n[superlink.dev]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.env = self.environment(home)
        self.start(
            home,
            "flower-superlink",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        )
        self.until_healthy()

    @staticmethod
    def environment(home: Path) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, home: Path, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (home / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command), *arguments],
                cwd=home,
                env=self.environment(home),
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def until_healthy(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.3)
        raise TimeoutError("the SuperLink did not come up")

    def add_node(self, name: str, site_dir: Path) -> None:
        home = self.folder / name
        home.mkdir()
        self.start(
            home,
            "flower-supernode",
            "--insecure",
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--port",
            str(free_port()),
            "--node-config",
            f'site-dir="{site_dir}"',
        )

    def run(self, config: Mapping[str, object], timeout: float = 300) -> str:
        """Submit the app, wait, return the final status."""
        path = self.folder / "run-config.toml"
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
        answer = self.flwr("run", str(ROOT), "dev", "--run-config", str(path))
        run_id = str(answer["run-id"])
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            (row,) = self.flwr("list", "dev", "--run-id", run_id)["runs"]
            if row["status"].startswith("finished"):
                return str(row["status"])
            time.sleep(2)
        raise TimeoutError("the run did not end")

    def flwr(self, *arguments: str) -> dict:  # type: ignore[type-arg]
        result = subprocess.run(
            [str(BIN / "flwr"), *arguments, "--format", "json"],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(result.stdout[result.stdout.index("{") :])  # type: ignore[no-any-return]

    def close(self) -> None:
        family = []
        for process in reversed(self.processes):
            if psutil.pid_exists(process.pid):
                node = psutil.Process(process.pid)
                family += [node, *node.children(recursive=True)]
        for node in family:
            try:
                node.terminate()
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(family, timeout=15)
        for node in left:
            node.kill()
        for process in self.processes:
            process.wait(timeout=15)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    federation = Deployment(tmp_path / "deployment")
    try:
        yield federation
    finally:
        federation.close()
