"""Where does a simulated round go? Seconds by phase, and the same rounds through Flower.

    python benchmarks/phases.py [--sites FOLDER] [--model FOLDER] [--no-run] [--out FILE]

First without Flower, in this process: each site opens, trains and evaluates in round 0 (SFT) and
round 1 (DPO) with the code that its SuperNode runs (`LocalSite`); adapters are laid out for a
message and read from it in both directions, spooled and averaged as the two ends do. Then `fedpref
run` with the same sites and rounds, on as many cores as there are. All times are of the clock, so
that the machine should do nothing else. What a round takes beyond (sum of its phases) / cores is
Flower's, Ray's and the operating system's, or a core that waits for the last site.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(HF_HUB_OFFLINE="1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state, pack
from fedpref.config import RunConfig
from fedpref.data import site_directories
from fedpref.demo.sites import ensure_demo_sites
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.spool import Spool
from fedpref.files import atomic_write

ROUNDS = 2
# The functions that a site's work consists of, where `LocalSite` finds them.
_WORK, _EVALUATION = "fedpref.federation.site_work", "fedpref.evaluation.site_evaluation"
TIMED = {
    f"{_WORK}.load_base_model": "load the base model",
    f"{_WORK}.encode_pairs": "encode pairs",
    f"{_WORK}.train_sft": "SFT",
    f"{_WORK}.reference_logps": "reference",
    f"{_WORK}.train_dpo": "DPO",
    f"{_EVALUATION}.predict": "generation",
    f"{_EVALUATION}.preference_counts": "preference accuracy",
}
REST, WIRE, AVERAGE = "open sites, the rest", "pack, unpack and hash", "spool and average"
IMPORT = "import torch, TRL, Flower …"

Seconds = dict[str, float]


class Stopwatch:
    """Sums the seconds of named stretches; of nested ones, the inner is not the outer's."""

    def __init__(self) -> None:
        self.seconds: Seconds = defaultdict(float)
        self._inner: list[float] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add what the block takes to `name`."""
        self._inner.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            whole = time.perf_counter() - start
            self.seconds[name] += whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, each call of which is a stretch."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.time(name):
                return function(*args, **kwargs)

        return call


def received(state: AdapterState, spec: AdapterSpec, receivers: int = 1) -> AdapterState:
    """Return an adapter as a receiver has it: laid out once, read and checked by each of them."""
    from flwr.app import RecordDict

    from fedpref.federation.wire import ARRAYS, Outgoing, read_states

    content = RecordDict({ARRAYS: Outgoing([state], spec).record(())})
    for _ in range(receivers):
        (found,) = read_states(content, spec).states.values()
    return found


def in_process(config: RunConfig, folder: Path, scratch: Path) -> dict[str, Seconds]:
    """Return the seconds by phase of opening the sites, of round 0 and of round 1."""
    stretches: dict[str, Seconds] = {}
    watch = Stopwatch()
    with ExitStack() as stack:
        with watch.time(IMPORT):
            import_module("fedpref.federation.wire")  # for `received`: brings Flower
            from fedpref.federation.site_work import LocalSite
        for target, name in TIMED.items():
            module, _, attribute = target.rpartition(".")
            timed = watch.timed(name, getattr(sys.modules[module], attribute))
            stack.enter_context(mock.patch(target, timed))
        with watch.time(REST):
            sites = [LocalSite(config, path) for path in site_directories(folder)]
        stretches["start"] = dict(watch.seconds)
        spec = sites[0].spec
        adapter: AdapterState = initial_state(spec, config.seed)
        root: AdapterState | None = None
        for round_ in range(ROUNDS):
            watch.seconds.clear()
            spool = Spool(scratch / "spool", round_)
            # A round's start is sent once: it is the end of the round before.
            if round_ == 0:
                with watch.time(WIRE):
                    adapter = received(adapter, spec, len(sites))
            for site in sites:
                with watch.time(REST):
                    trained = site.train(round_, adapter, root)
                if trained is not None:
                    with watch.time(WIRE):
                        flat = pack(received(trained.state, spec), spec)
                    with watch.time(AVERAGE):
                        spool.put(site.name, flat, trained.trained_pair_count)
            with watch.time(AVERAGE):
                updates = spool.updates(spec)
                adapter = weighted_mean([u.state for u in updates], [u.pairs for u in updates])
                spool.remove()
            with watch.time(WIRE):
                adapter = received(adapter, spec, len(sites))
            root = adapter if root is None else root
            for site in sites:
                with watch.time(REST):
                    site.evaluate(round_, adapter)
            stretches[f"round {round_}"] = dict(watch.seconds)
    return stretches


def through_flower(config: RunConfig, folder: Path, scratch: Path) -> dict[str, float] | None:
    """Return the seconds of a whole `fedpref run`, of its rounds, and of all that is no round.

    None if the run failed; it has said why.
    """
    values = {
        "sites": folder.absolute(),
        "runs-dir": (scratch / "runs").absolute(),
        "model.path": config.model.path,
        "prompt.style": config.prompt.style,
        "rounds": ROUNDS - 1,
    }
    command = [str(Path(sys.executable).parent / "fedpref"), "run", "--json"]
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    start = time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    whole = time.perf_counter() - start
    if done.returncode != 0:
        return None
    rounds = json.loads(done.stdout)["rounds"]
    by_round = {f"round {i}": float(r["seconds"]["total"]) for i, r in enumerate(rounds)}
    return {**by_round, "start": whole - sum(by_round.values()), "whole": whole}


def show(phases: Mapping[str, Seconds], flower: Mapping[str, float] | None, cores: int) -> str:
    """Return the table, at most 80 columns: seconds by phase, sum, and what Flower's run took."""
    columns = list(phases)
    names = [
        name
        for name in (IMPORT, *TIMED.values(), WIRE, AVERAGE, REST)
        if any(name in phases[column] for column in columns)
    ]
    lines = [f"{'seconds, all sites':28}" + "".join(f"{column:>12}" for column in columns)]

    def line(name: str, values: Mapping[str, float]) -> str:
        cells = (f"{values[c]:12.2f}" if c in values else f"{'':12}" for c in columns)
        return (f"{name:28}" + "".join(cells)).rstrip()

    lines += [
        line(name, {c: phases[c][name] for c in columns if name in phases[c]}) for name in names
    ]
    sums = {column: sum(phases[column].values()) for column in columns}
    lines.append(line("sum", sums))
    if flower is not None:
        lines.append(line(f"sum / {cores} cores", {c: s / cores for c, s in sums.items()}))
        lines.append(line("fedpref run, by the clock", flower))
        lines.append(line("beyond sum / cores", {c: flower[c] - sums[c] / cores for c in columns}))
        lines.append(f"fedpref run as a whole: {flower['whole']:.1f} s")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark and print its table; return 1 if the run through Flower failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sites", type=Path, help="folder of site directories (the demo's)")
    parser.add_argument("--model", default="demo", help="base model: demo, or a folder")
    parser.add_argument("--prompt-style", choices=("full", "compact"), default="compact")
    parser.add_argument("--run", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, help="also write the seconds as JSON")
    arguments = parser.parse_args()
    model = arguments.model if arguments.model == "demo" else str(Path(arguments.model).absolute())
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="fedpref-phases-") as name:
        scratch = Path(name)
        for copy in ("sites", "sites-of-the-run"):
            # Stored roots and references of an earlier run would shorten this one.
            shutil.copytree(
                arguments.sites or ensure_demo_sites(),
                scratch / copy,
                ignore=shutil.ignore_patterns("state"),
            )
        config = RunConfig.model_validate(
            {
                "sites": str(scratch / "sites"),
                "model": {"path": model},
                "prompt": {"style": arguments.prompt_style},
            }
        )
        phases = in_process(config, scratch / "sites", scratch)
        flower = None
        if arguments.run:
            flower = through_flower(config, scratch / "sites-of-the-run", scratch)
    print(show(phases, flower, cores))
    if arguments.out:
        found = {"date": date.today().isoformat(), "cores": cores, "phases": phases}
        atomic_write(arguments.out, json.dumps({**found, "run": flower}, indent=1) + "\n")
    return 1 if arguments.run and flower is None else 0


if __name__ == "__main__":
    sys.exit(main())
