"""What does averaging cost? FedPref beside Flower's FedAvg, in memory and time, by sites.

    python benchmarks/aggregation.py

8, 16 and 32 adapters of the LoRA shape of Qwen3-8B (r = 16, float32, 175 MB each). Every
measurement is a process of its own. Memory is the highest resident set over what the process held
before, in adapters; time is the CPU seconds of averaging on one thread. The ways:

flower        flwr.serverapp.strategy.FedAvg.aggregate_train, which is given all replies
pair-fedavg   our default strategy as a run uses it: each reply is taken from the wire, checked and
              spooled, then the strategy combines what lies on disk. Memory is that of all of it,
              beside the adapter that the round began with; time that of combining. What checking
              and spooling take is told apart: Flower does nothing of the kind
any other strategy of ours with --ways: uniform, feddraw, svd (QR of 512 columns a layer at 32
              sites: minutes)

Either time includes reading the updates: Flower decodes its arrays, ours reads files, which the
system has in memory by then. Three adapters serve all sites, each under a weight of its own.

Prints a table with ratios to Flower; exits with 1 unless pair-fedavg's peak is at most 3 adapters,
its slope at most 1 % of an adapter a site, and its time at most Flower's at every number of sites.
Needs 7 GB of memory and 7 GB of disk (`--folder`). `--layers 1` is a smoke run: Python's own
garbage weighs as much as an adapter there, so that its memory figures mean little.
"""

import argparse
import ctypes
import gc
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedpref.adapter_state import AdapterSpec, initial_state, pack, state_digest
from fedpref.files import atomic_write

SITES, LAYERS, RANK = (8, 16, 32), 36, 16
# Qwen3-8B: (out, in) of the seven adapted projections.
PROJECTIONS = {
    "mlp.down_proj": (4096, 12288),
    "mlp.gate_proj": (12288, 4096),
    "mlp.up_proj": (12288, 4096),
    "self_attn.k_proj": (1024, 4096),
    "self_attn.o_proj": (4096, 4096),
    "self_attn.q_proj": (4096, 4096),
    "self_attn.v_proj": (1024, 4096),
}
FLOWER, JUDGED = "flower", "pair-fedavg"
WAYS = (FLOWER, JUDGED, "uniform", "feddraw", "svd")
FILES = 3
PEAK_LIMIT, SLOPE_LIMIT = 3.0, 0.01


def shapes(layers: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of an adapter's tensors by PEFT's keys, sorted."""
    found = {}
    for layer in range(layers):
        for name, (out, into) in PROJECTIONS.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            found[f"{module}.lora_A.weight"] = (RANK, into)
            found[f"{module}.lora_B.weight"] = (out, RANK)
    return dict(sorted(found.items()))


def adapter_bytes(layers: int) -> int:
    """Return the size of one float32 adapter."""
    return 4 * sum(math.prod(shape) for shape in shapes(layers).values())


class Maker:
    """Makes the tensors of any site."""

    def __init__(self, layers: int) -> None:
        self.shapes = shapes(layers)
        rng = np.random.default_rng(0)
        largest = max(math.prod(shape) for shape in self.shapes.values())
        self._noise = rng.standard_normal(2 * largest, dtype=np.float32)

    def spec(self) -> AdapterSpec:
        """Return the specification of the adapters."""
        targets = tuple(name.rpartition(".")[2] for name in PROJECTIONS)
        keys, found = tuple(self.shapes), tuple(self.shapes.values())
        return AdapterSpec(RANK, 2.0 * RANK, False, targets, keys, found)

    def array(self, site: int, key: str) -> Any:
        """Return one tensor of one site as Flower sends it (a window of the noise)."""
        from flwr.app import Array

        shape = self.shapes[key]
        size = math.prod(shape)
        # The window moves from tensor to tensor: products of equal factors would hide work.
        first = (7919 * (site + 1) + 104729 * len(key) + size) % (self._noise.size - size)
        return Array(self._noise[first : first + size].reshape(shape))

    def reply(self, site: int) -> Any:
        """Return a whole reply of one site, one array a tensor."""
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

        content = RecordDict(
            {
                "arrays": ArrayRecord({key: self.array(site, key) for key in self.shapes}),
                "metrics": MetricRecord({"num-examples": 100 + site}),
            }
        )
        return Message(content, dst_node_id=1 + site, message_type="train", group_id="1")


class Flower:
    """Flower's FedAvg, which is given all replies at once."""

    def __init__(self, maker: Maker, sites: int, folder: Path) -> None:
        self.maker, self.sites = maker, sites

    def run(self) -> dict[str, float]:
        """Average; return the CPU seconds."""
        from flwr.serverapp.strategy import FedAvg

        replies = [self.maker.reply(site) for site in range(self.sites)]
        start = time.process_time()
        arrays, _ = FedAvg(weighted_by_key="num-examples").aggregate_train(1, replies)
        assert arrays is not None
        return {"seconds": time.process_time() - start}


class Ours:
    """A strategy of ours as the round loop uses it, from the replies on the wire to the adapter."""

    def __init__(self, maker: Maker, sites: int, folder: Path, name: str) -> None:
        from fedpref.config import load_config
        from fedpref.federation.strategies import RunFacts, make_strategy
        from fedpref.federation.strategy_turns import StrategyTurns

        self.spec, self.folder = maker.spec(), folder
        self.start = initial_state(self.spec, 0)
        self.nodes = {f"site-{number:03}": 1 + number for number in range(sites)}
        self.names = [self._write(maker, number) for number in range(FILES)]
        strategy: Any = make_strategy(load_config({"strategy": name}))
        strategy.prepare(RunFacts(tuple(self.nodes), 3, self.spec))
        self.turns = StrategyTurns(strategy, name)
        grid: Any = None  # a strategy sees the nodes alone
        self.turns.configure(1, self.start, grid, self.nodes)

    def _write(self, maker: Maker, number: int) -> str:
        """Write a site's update as it travels; return its hash."""
        state = {key: maker.array(number, key).numpy() for key in self.spec.keys}
        np.save(self.folder / f"{number}.npy", pack(state, self.spec))
        return state_digest(state)

    def run(self) -> dict[str, float]:
        """Receive all updates and combine them; return the CPU seconds of either."""
        from fedpref.federation.spool import Spool

        spool, base = Spool(self.folder, 1), state_digest(self.start)
        start = time.process_time()
        for number, site in enumerate(self.nodes):
            self._receive(site, number, base, spool)
        middle = time.process_time()
        updates = spool.updates(self.spec)
        self.turns.combine(1, updates, self.nodes, self.spec)
        return {"receiving": middle - start, "seconds": time.process_time() - middle}

    def _receive(self, site: str, number: int, base: str, spool: Any) -> None:
        """Take one reply, as `Rounds` does: guards, norm, spool."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

        from fedpref.federation import guards, wire
        from fedpref.federation.cohort_guards import update_norm

        name = self.names[number % FILES]
        data = (self.folder / f"{number % FILES}.npy").read_bytes()
        array = Array("float32", (self.spec.parameter_count,), "numpy.ndarray", data)
        fields: dict[str, Any] = {
            wire.STATUS: wire.TRAINED,
            wire.SITE: site,
            wire.FEDERATION: "benchmark",
            wire.ROUND: 1,
            wire.BASE_HASH: base,
            wire.ADAPTER_HASH: name,
        }
        content = RecordDict(
            {
                wire.CONFIG: ConfigRecord(fields),
                wire.ARRAYS: ArrayRecord({name: array}),
                wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 100 + number}),
            }
        )
        reply = Message(content, dst_node_id=1, message_type="train")
        expected = guards.Expectation(site, "benchmark", 1, self.spec, base, 100 + number)
        guards.check_reply(reply, expected, (wire.TRAINED,))
        update = guards.check_update(reply, expected)
        spool.put(site, update.flat, update.pair_count)
        update_norm(update.flat, self.start, self.spec)


def prepared(way: str, maker: Maker, sites: int, folder: Path) -> Flower | Ours:
    """Return one way, ready to run once; what it holds by then is not counted."""
    return Flower(maker, sites, folder) if way == FLOWER else Ours(maker, sites, folder, way)


def status_bytes(name: str) -> int:
    """Return a figure of this process in bytes: VmRSS (resident now) or VmHWM (at most)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc/self/status: this benchmark needs Linux")


def measure_here(way: str, sites: int, layers: int, folder: Path) -> dict[str, float]:
    """Return peak (bytes over the start) and CPU seconds of one run in this process."""
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # A message names the run it belongs to; here there is none.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    prepared(way, Maker(1), 3, folder).run()  # imports and buffers are no cost of an adapter
    ready = prepared(way, Maker(layers), sites, folder)
    # What was freed is given back, or the run could use it unseen; then the highest value so far
    # is forgotten, and counted from what is resident now.
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")
    found = ready.run()
    return {"peak": status_bytes("VmHWM") - before, "receiving": 0.0, **found}


def measure(way: str, sites: int, layers: int, where: str | None) -> dict[str, float]:
    """Return what `measure_here` finds in a process of its own."""
    command = [sys.executable, __file__, "--child", way, str(sites), "--layers", str(layers)]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(threads, "1")
    with tempfile.TemporaryDirectory(dir=where, prefix="aggregation-") as folder:
        done = subprocess.run(
            [*command, "--folder", folder], env=environment, check=True, stdout=subprocess.PIPE
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row_of(way: str, sites: int, layers: int, found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the highest peak in adapters and the median seconds of several processes."""
    return {
        "way": way,
        "sites": sites,
        "peak": max(one["peak"] for one in found) / adapter_bytes(layers),
        "seconds": median(one["seconds"] for one in found),
        "receiving": median(one["receiving"] for one in found),
    }


def slope(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the adapters of memory that a further site costs (least squares)."""
    if len(rows) < 2:
        return math.nan
    return float(np.polyfit([row["sites"] for row in rows], [row["peak"] for row in rows], 1)[0])


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by way, slope, highest peak, and whether it keeps the limits (null if not judged)."""
    flower = {row["sites"]: row for row in rows if row["way"] == FLOWER}
    found = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        peak, rise = max(row["peak"] for row in own), slope(own)
        quick = all(
            row["seconds"] <= flower[row["sites"]]["seconds"]
            for row in own
            if row["sites"] in flower
        )
        good = peak <= PEAK_LIMIT and not rise > SLOPE_LIMIT and quick
        found[way] = {"peak": peak, "slope": rise, "good": good if way == JUDGED else None}
    return found


def print_row(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line of the table; the ratios are to Flower at the same number of sites."""
    base = [r for r in rows if r["way"] == FLOWER and r["sites"] == row["sites"]]
    ratios = [f"{row[name] / base[0][name]:8.3f}" if base else "       –" for name in ROW]
    print(
        f"{row['way']:14} {row['sites']:5} {row['peak']:9.3f} {ratios[0]} "
        f"{row['seconds']:9.2f} {ratios[1]}",
        flush=True,
    )


ROW = ("peak", "seconds")


def main() -> int:
    """Run the benchmark; return 0 if the judged ways keep the limits, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS, help="transformer blocks")
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    parser.add_argument("--ways", nargs="+", default=(FLOWER, JUDGED), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=3, help="processes a measurement")
    parser.add_argument("--folder", help="where to put a few GB for a while")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "SITES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, sites = arguments.child
        print(json.dumps(measure_here(way, int(sites), arguments.layers, Path(arguments.folder))))
        return 0
    size = adapter_bytes(arguments.layers)
    print(f"An adapter: {arguments.layers} layers, r = {RANK}, {size / 1e6:.1f} MB in float32\n")
    print("                       peak in  to                    to")
    print("way            sites  adapters  Flower   seconds   Flower")
    rows: list[dict[str, Any]] = []
    for sites in arguments.sites:
        found: dict[str, list[dict[str, float]]] = {way: [] for way in arguments.ways}
        for _ in range(arguments.repeats):  # in turns: whatever else runs here meets all ways
            for way in arguments.ways:
                found[way].append(measure(way, sites, arguments.layers, arguments.folder))
        for way in arguments.ways:
            rows.append(row_of(way, sites, arguments.layers, found[way]))
            print_row(rows[-1], rows)
    verdicts = judge(rows)
    print("\nway            highest peak  adapters a further site  within the limits")
    for way, verdict in verdicts.items():
        said = {True: "yes", False: "NO", None: "not judged"}[verdict["good"]]
        print(f"{way:14} {verdict['peak']:12.3f} {verdict['slope']:24.4f}  {said}")
    for row in rows[-1:]:
        print(f"\nChecking and spooling one update: {row['receiving'] / row['sites']:.2f} s")
    print(f"Limits: {PEAK_LIMIT:g} adapters, {SLOPE_LIMIT:g} a further site, Flower's time")
    if arguments.out:
        result = {"adapter_bytes": size, "layers": arguments.layers, "rows": rows}
        atomic_write(arguments.out, json.dumps(result | {"ways": verdicts}, indent=1) + "\n")
    return 1 if any(found["good"] is False for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
