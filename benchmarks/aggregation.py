"""What does averaging cost? FedPref beside Flower's FedAvg, in memory and time, by sites.

    python benchmarks/aggregation.py

8, 16 and 32 adapters of the LoRA shape of Qwen3-8B (r = 16, float32, 175 MB each), made on the fly.
Every measurement is a process of its own; memory is the highest resident set over what the process
held before the first adapter, in adapters; time is the CPU seconds of averaging on one thread. It
includes decoding Flower's arrays and reading files (which the system has in memory by then), not
making adapters. The files of three adapters serve all sites. The ways:

flower         flwr.serverapp.strategy.FedAvg.aggregate_train, which is given all replies
weighted_mean  our mean over states in files, as the spool keeps them, read tensor by tensor
fold           our running fold over whole replies, one at a time
pair-fedavg    our default strategy's aggregate_train, given whole replies one at a time
svd            the best factors of rank 16; fedex: means and residual; feddraw: the weights; over
fedex, feddraw such files, only with --ways: 512 columns a layer at 32 sites take minutes

Prints a table with ratios to Flower; exits with 1 unless, for each of weighted_mean and pair-fedavg
that was run, the peak is at most 3 adapters, its slope at most 1 % of an adapter a site, and the
time at most Flower's at every number of sites. `--layers 1` is a smoke run: Python's own garbage
weighs as much as an adapter there, so that its memory figures mean little.
"""

import argparse
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np

from fedpref.files import atomic_write

SITES, LAYERS, RANK, SCALE = (8, 16, 32), 36, 16, 2.0
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
DEFAULT_WAYS = ("flower", "weighted_mean", "fold", "pair-fedavg")
MORE_WAYS = ("svd", "fedex", "feddraw")
JUDGED = ("weighted_mean", "pair-fedavg")
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
    """Makes the tensors of any site; `seconds` is the CPU time that took, to be left out."""

    def __init__(self, layers: int) -> None:
        self.shapes = shapes(layers)
        rng = np.random.default_rng(0)
        largest = max(math.prod(shape) for shape in self.shapes.values())
        self._noise = rng.standard_normal(2 * largest, dtype=np.float32)
        self.seconds = 0.0

    def array(self, site: int, key: str) -> Any:
        """Return one tensor of one site as Flower sends it (a window of the noise)."""
        from flwr.app import Array

        start = time.process_time()
        shape = self.shapes[key]
        size = math.prod(shape)
        # The window moves from tensor to tensor: products of equal factors would hide work.
        first = (7919 * (site + 1) + 104729 * len(key) + size) % (self._noise.size - size)
        array = Array(self._noise[first : first + size].reshape(shape))
        self.seconds += time.process_time() - start
        return array

    def reply(self, site: int) -> Any:
        """Return a whole reply of one site, as the round loop hands it to a strategy."""
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

        content = RecordDict(
            {
                "arrays": ArrayRecord({key: self.array(site, key) for key in self.shapes}),
                "metrics": MetricRecord({"num-examples": 100 + site}),
            }
        )
        return Message(content, dst_node_id=1 + site, message_type="train", group_id="1")

    def replies(self, sites: int) -> Iterator[Any]:
        """Yield one reply at a time and keep none."""
        for site in range(sites):
            yield self.reply(site)


class FromFile(Mapping[str, Any]):
    """A state in a flat file, as the spool keeps it, that is read tensor by tensor."""

    def __init__(self, stream: BinaryIO, shapes: Mapping[str, tuple[int, int]]) -> None:
        self._stream, self._shapes = stream, shapes
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._starts = dict(zip(shapes, itertools.accumulate([0, *sizes]), strict=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, key: str) -> Any:
        shape = self._shapes[key]
        self._stream.seek(4 * self._starts[key])
        data = self._stream.read(4 * math.prod(shape))
        return np.frombuffer(data, dtype=np.float32).reshape(shape)


class FromReply(Mapping[str, Any]):
    """The state in one reply's record, decoded tensor by tensor."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def __getitem__(self, key: str) -> Any:
        return self._record[key].numpy()


def run_flower(maker: Maker, sites: int) -> float:
    """Average with Flower's FedAvg; return its CPU seconds."""
    from flwr.serverapp.strategy import FedAvg

    replies = list(maker.replies(sites))
    start = time.process_time()
    arrays, _ = FedAvg(weighted_by_key="num-examples").aggregate_train(1, replies)
    assert arrays is not None
    return time.process_time() - start


def run_pair_fedavg(maker: Maker, sites: int) -> float:
    """Average with our default strategy; return its CPU seconds."""
    from fedpref.federation.strategies.pair_fedavg import PairFedAvg

    start, made = time.process_time(), maker.seconds
    arrays, _ = PairFedAvg().aggregate_train(1, maker.replies(sites))
    assert arrays is not None
    return time.process_time() - start - (maker.seconds - made)


def run_fold(maker: Maker, sites: int) -> float:
    """Average with the fold over whole replies; return its CPU seconds."""
    from fedpref.federation.aggregation import WeightedFold

    start, made, fold = time.process_time(), maker.seconds, WeightedFold()
    for site in range(sites):
        fold.add(FromReply(maker.reply(site).content.array_records["arrays"]), 100 + site)
    fold.mean()
    return time.process_time() - start - (maker.seconds - made)


def run_files(maker: Maker, sites: int, way: str) -> float:
    """Run a function over states in files; return its CPU seconds, reading included."""
    from fedpref.federation import aggregation

    with ExitStack() as stack:
        streams: list[BinaryIO] = [stack.enter_context(TemporaryFile()) for _ in range(FILES)]
        for number, stream in enumerate(streams):
            for key in maker.shapes:
                stream.write(maker.array(number, key).numpy().tobytes())
        states = [FromFile(streams[site % FILES], maker.shapes) for site in range(sites)]
        weights, scales = [100 + site for site in range(sites)], [SCALE] * sites
        start = time.process_time()
        if way == "weighted_mean":
            aggregation.weighted_mean(states, weights)
        elif way == "svd":
            aggregation.svd_aggregate(states, weights, scales, rank=RANK)
        elif way == "fedex":
            aggregation.fedex_aggregate(states, weights, scales)
        else:
            aggregation.feddraw_weights(states, states[0], weights, round=1, last_round=3)
        return time.process_time() - start


def run(way: str, maker: Maker, sites: int) -> float:
    """Run one way once; return its CPU seconds."""
    runs = {"flower": run_flower, "pair-fedavg": run_pair_fedavg, "fold": run_fold}
    return runs[way](maker, sites) if way in runs else run_files(maker, sites, way)


def status_bytes(name: str) -> int:
    """Return a figure of this process in bytes: VmRSS (resident now) or VmHWM (at most)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc/self/status: this benchmark needs Linux")


def measure_here(way: str, sites: int, layers: int) -> dict[str, float]:
    """Return peak (bytes over the start) and CPU seconds of one run in this process."""
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # A message names the run it belongs to; here there is none.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    run(way, Maker(1), 2)  # imports, thread pools and buffers are no cost of an adapter
    maker = Maker(layers)
    # Forget the highest value of the warm-up, then count from what is resident now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")
    seconds = run(way, maker, sites)
    return {"peak": status_bytes("VmHWM") - before, "seconds": seconds}


def measure(way: str, sites: int, layers: int, repeats: int) -> dict[str, Any]:
    """Return the highest peak in adapters and the median seconds of `repeats` processes."""
    command = [sys.executable, __file__, "--child", way, str(sites), "--layers", str(layers)]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(threads, "1")
    found = [
        json.loads(
            subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        )
        for _ in range(repeats)
    ]
    return {
        "way": way,
        "sites": sites,
        "peak": max(one["peak"] for one in found) / adapter_bytes(layers),
        "seconds": median(one["seconds"] for one in found),
    }


def slope(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the adapters of memory that a further site costs (least squares)."""
    if len(rows) < 2:
        return math.nan
    return float(np.polyfit([row["sites"] for row in rows], [row["peak"] for row in rows], 1)[0])


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by way, slope, highest peak, and whether it keeps the limits (null if not judged)."""
    flower = {row["sites"]: row for row in rows if row["way"] == "flower"}
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
        found[way] = {"peak": peak, "slope": rise, "good": good if way in JUDGED else None}
    return found


def print_row(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line of the table; the ratios are to Flower at the same number of sites."""
    base = [r for r in rows if r["way"] == "flower" and r["sites"] == row["sites"]]
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
    parser.add_argument(
        "--ways", nargs="+", default=DEFAULT_WAYS, choices=[*DEFAULT_WAYS, *MORE_WAYS]
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes a measurement")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "SITES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, sites = arguments.child
        print(json.dumps(measure_here(way, int(sites), arguments.layers)))
        return 0
    size = adapter_bytes(arguments.layers)
    print(f"An adapter: {arguments.layers} layers, r = {RANK}, {size / 1e6:.1f} MB in float32\n")
    print("                       peak in  to                    to")
    print("way            sites  adapters  Flower   seconds   Flower")
    rows: list[dict[str, Any]] = []
    for way in arguments.ways:
        for sites in arguments.sites:
            rows.append(measure(way, sites, arguments.layers, arguments.repeats))
            print_row(rows[-1], rows)
    verdicts = judge(rows)
    print("\nway            highest peak  adapters a further site  within the limits")
    for way, found in verdicts.items():
        said = {True: "yes", False: "NO", None: "not judged"}[found["good"]]
        print(f"{way:14} {found['peak']:12.3f} {found['slope']:24.4f}  {said}")
    print(f"\nLimits: {PEAK_LIMIT:g} adapters, {SLOPE_LIMIT:g} a further site, Flower's time")
    if arguments.out:
        result = {"adapter_bytes": size, "layers": arguments.layers, "rows": rows}
        atomic_write(arguments.out, json.dumps(result | {"ways": verdicts}, indent=1) + "\n")
    return 1 if any(found["good"] is False for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
