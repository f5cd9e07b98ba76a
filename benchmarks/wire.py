"""How many bytes does a whole federation send, in each wire format?

    python benchmarks/wire.py [--parameters N] [--formats int4,int8] [--out FILE] [--folder DIR]

Six sites and four rounds (SFT, then three of DPO) of an adapter of Qwen3-8B's shape, run by the
real server and the real site end in one process: handshake, rounds, spool, average, evaluation. The
site's training is noise of the size that training makes (round 0: 2e-3, later 3e-4), made on the
fly and equal in every format. Counted are the contents of all messages as Flower serialises them,
the handshake's too. `error` is that of the last adapter against float32's, as a share of the way
from the initial adapter; noise is its hardest case, because no two sites move alike.
`--parameters` runs so many parameters, rounded up to whole layers.

Prints a table; exits with 1 if int8 takes more than 27 % or int4 more than 15 % of float32's bytes,
or, with all parameters, if int4 takes a GiB or more. Needs 5 GB of disk and 3 GB of memory.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state, load_adapter
from fedpref.config import RunConfig, load_config
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation.cohort import known_to_coordinator
from fedpref.federation.site_worker import SiteWorker
from fedpref.federation.wire import content_bytes
from fedpref.files import atomic_write
from fedpref.training.adjustment import Adjustment
from fedpref.training.trained import Trained
from fedpref_app.server_app import app as server_app

FORMATS = ("float32", "bfloat16", "int8", "int4")
SITES, ROUNDS, RANK = 6, 4, 16
# (module, input width, output width) of one of Qwen3-8B's 36 layers.
HIDDEN, LAYERS = 4096, 36
MODULES = (
    ("self_attn.q_proj", HIDDEN, 4096),
    ("self_attn.k_proj", HIDDEN, 1024),
    ("self_attn.v_proj", HIDDEN, 1024),
    ("self_attn.o_proj", 4096, HIDDEN),
    ("mlp.gate_proj", HIDDEN, 12288),
    ("mlp.up_proj", HIDDEN, 12288),
    ("mlp.down_proj", 12288, HIDDEN),
)
PER_LAYER = RANK * sum(width + out for _, width, out in MODULES)
ALL = LAYERS * PER_LAYER  # 43,646,976
GIB, MIB = 2.0**30, 2.0**20
PAPER_GIB = 7.81  # what the paper's federation sent
SHARES = {"int8": 0.27, "int4": 0.15}
STEPS = (2e-3, 3e-4)


def qwen_spec(parameters: int) -> AdapterSpec:
    """Return the specification of the least whole layers that hold so many parameters."""
    layers = -(-parameters // PER_LAYER)
    shapes = {
        f"base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight": shape
        for layer in range(layers)
        for module, width, out in MODULES
        for factor, shape in (("A", (RANK, width)), ("B", (out, RANK)))
    }
    keys = tuple(sorted(shapes))
    return AdapterSpec(
        rank=RANK,
        alpha=32.0,
        rslora=False,
        targets=tuple(module.rpartition(".")[2] for module, _, _ in MODULES),
        keys=keys,
        shapes=tuple(shapes[key] for key in keys),
    )


@dataclass
class NoiseWork:
    """A site whose training adds noise of its own and whose evaluation finds half of all."""

    number: int
    spec: AdapterSpec
    folder: Path
    base_name: str = "noise"
    dev_reports: int | None = 40
    synthetic: bool = True

    @property
    def name(self) -> str:
        """The site's name."""
        return f"site-{self.number + 1}"

    @property
    def pair_count(self) -> int:
        """The pairs that the site says it trains on; the weights differ a little."""
        return 100 + self.number

    @property
    def state_dir(self) -> Path:
        """Where the site keeps adapters."""
        return self.folder / self.name

    def check(self) -> None:
        """Find nothing wrong."""

    def hashes(self) -> Mapping[str, str]:
        """Return what the coordinator knows, and the same made-up hash from every site."""
        known = known_to_coordinator(load_config({}))
        return {name: known.get(name, "0" * 64) for name in ("prompt", "ontology")} | {
            "weights": "0" * 64,
            "tokenizer": "0" * 64,
        }

    def versions(self) -> Mapping[str, str]:
        """Return FedPref's own version."""
        return {"fedpref": known_to_coordinator(load_config({}))["version:fedpref"]}

    def train(
        self,
        round_: int,
        start: AdapterState,
        root: AdapterState | None,
        adjustment: Adjustment,
    ) -> Trained:
        """Return the start plus the noise of this site and round."""
        rng = np.random.default_rng([self.number, round_])
        step = np.float32(STEPS[min(round_, 1)])
        state = {
            key: value + step * rng.standard_normal(value.shape, dtype=np.float32)
            for key, value in start.items()
        }
        return Trained(state, self.pair_count, 1, 0.0, 0.0, 0.0, 0.0)

    def evaluate(self, round_: int, adapter: AdapterState) -> EvaluationCounts:
        """Return the same counts for every adapter."""
        return EvaluationCounts(reports=40, tp=20, fp=20, fn=20, disease_tp=20, projected=40)


@dataclass
class InProcessGrid(Grid):
    """Answers each message when its reply is asked for, and counts the contents of both."""

    sites: list[NoiseWork]
    config: RunConfig
    down: int = 0
    up: int = 0
    messages: int = 0
    _open: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        """Return one node a site."""
        return range(100, 100 + len(self.sites))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count the messages and keep them until their replies are asked for."""
        ids = []
        for message in messages:
            self.down += content_bytes([message])
            self.messages += 1
            ids.append(uuid.uuid4().hex)
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._open[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Yield the replies, each made now, so that one is in memory."""
        for message_id in message_ids:
            message = self._open.pop(message_id)
            number = message.metadata.dst_node_id - 100
            worker = SiteWorker(
                self.sites[number], self.config, partition=number, partitions=len(self.sites)
            )
            reply: Message = getattr(worker, message.metadata.message_type)(message)
            self.up += content_bytes([reply])
            yield reply

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """Not used by FedPref."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Any:
        """Not used by FedPref."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """Not used by FedPref."""
        raise NotImplementedError

    @property
    def run(self) -> Any:
        """Not used by FedPref."""
        raise NotImplementedError


def federation(format_: str, spec: AdapterSpec, folder: Path) -> dict[str, Any]:
    """Run a whole federation in `folder`; return its bytes and seconds."""
    values: dict[str, bool | int | float | str] = {
        "federation": "noise",
        "runs-dir": str(folder),
        "run-id": "run",
        "rounds": ROUNDS - 1,
        "wire": format_,
    }
    grid = InProcessGrid([NoiseWork(i, spec, folder) for i in range(SITES)], load_config(values))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=values)
    start = time.perf_counter()
    server_app(grid, context)
    seconds = time.perf_counter() - start
    shown = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))["bytes"]
    return {
        "format": format_,
        "parameters": spec.parameter_count,
        "down": grid.down,
        "up": grid.up,
        "total": grid.down + grid.up,
        # Without the handshake, which is no round's.
        "shown_by_the_run": shown["down"] + shown["up"],
        "messages": grid.messages,
        "seconds": seconds,
    }


def last_adapter(folder: Path, spec: AdapterSpec) -> AdapterState:
    """Return the adapter that the run in `folder` ended with."""
    return load_adapter(folder / "run" / "adapters" / f"round-{ROUNDS - 1}", spec)


def distance(a: AdapterState, b: AdapterState) -> float:
    """Return the Euclidean distance of two states."""
    total = sum(float(np.sum((a[key].astype(np.float64) - b[key]) ** 2)) for key in a)
    return float(total**0.5)


def main() -> int:
    """Run the benchmark; return 0 if the formats are as lean as promised, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=ALL, help=f"default {ALL:,}")
    parser.add_argument("--formats", default=",".join(FORMATS), help="float32 always comes first")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    parser.add_argument("--folder", type=Path, help="where the run's files lie meanwhile")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    spec = qwen_spec(arguments.parameters)
    print(f"{spec.parameter_count:,} parameters, {SITES} sites, {ROUNDS} rounds\n")
    print("format      down MiB     up MiB  total GiB   share    error  seconds")
    rows: list[dict[str, Any]] = []
    exact: AdapterState = {}
    for format_ in ("float32", *(f for f in arguments.formats.split(",") if f != "float32")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            row = federation(format_, spec, Path(name))
            last = last_adapter(Path(name), spec)
        exact = exact or last
        way = distance(exact, initial_state(spec, load_config({}).seed))
        row |= {"error": distance(last, exact) / way}
        rows.append(row)
        row |= {"share": row["total"] / rows[0]["total"]}
        print(
            f"{format_:9} {row['down'] / MIB:10.1f} {row['up'] / MIB:10.1f} "
            f"{row['total'] / GIB:10.3f} {row['share']:7.2%} {row['error']:8.2%} "
            f"{row['seconds']:8.1f}",
            flush=True,
        )
    if arguments.out:
        atomic_write(arguments.out, json.dumps(rows, indent=1) + "\n")
    lean = all(row["share"] <= SHARES.get(row["format"], 1.0) for row in rows)
    if spec.parameter_count == ALL:
        print(f"\nThe paper's federation: {PAPER_GIB} GiB")
        lean = lean and all(row["total"] < GIB for row in rows if row["format"] == "int4")
    print(f"\n{'As' if lean else 'NOT as'} lean as promised")
    return 0 if lean else 1


if __name__ == "__main__":
    sys.exit(main())
