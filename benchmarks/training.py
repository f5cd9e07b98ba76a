"""How fast are SFT, DPO and generation, beside TRL's trainers and one answer after the other?

    python benchmarks/training.py [--sites FOLDER] [--model FOLDER] [--pairs N] [--out FILE]

SFT   TRL's SFTTrainer; FedPref's engine.
DPO   TRL's DPOTrainer as one would use it (batch 1, the reference is a frozen second adapter); the
      same with precompute_ref_log_probs; FedPref's engine. What the reference costs once, before
      the first step, is counted apart.
Generation   transformers' `generate` for each report by itself; FedPref's `generate`.
logps   No speed: the log-probs of two pairs in float32 trees beside those of each response alone in
      float64. Exits with 1 if one is further off than 1e-5, relative.

All in one process, with the same pairs, order, prompt (`full`), steps, schedule, precision and
checkpointing; the ways take turns `--repeats` times, and the medians count. What follows SFT starts
from what that gave. Time is the process's CPU time (on a GPU: the clock) of a whole round, building
the trainer included. Memory cannot be told apart in one process: each way's peak is that of a fresh
one that trains on the largest group of pairs, or answers the reports that fill a batch with the
longest prompts (on a GPU: of the ways' turns).

Pairs are the first of the sites in order, reports those of their dev split. By default the
synthetic demo's sites and the bundled model; `make smollm2` gets a larger one, docs/data.md real
reports, and `--shape` takes a Qwen3 shape with random weights. Each part prints its table and
writes `--out` as it ends; no text of a report is printed or written.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest import mock

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TQDM_DISABLE="1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from clock import memory_mib, peak_mib, seconds_now, start_peak
from logps64 import LIMIT, tree_deviation
from one_by_one import Tokens, differences, is_decided, one_by_one
from random_models import SHAPES, random_base
from stock_trl import stock_dpo, stock_sft

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state
from fedpref.config import LoraSettings, TrainingSettings
from fedpref.data import SiteDirectory, site_directories
from fedpref.demo.sites import ensure_demo_sites
from fedpref.evaluation.generation import generate
from fedpref.evaluation.shared_prefix import common_prefix
from fedpref.files import atomic_write
from fedpref.preference.dataset import read_pairs
from fedpref.task.prompt import messages
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.encoding import EncodedPair, encode_pairs, encode_prompt
from fedpref.training.reference import sequence_logps
from fedpref.training.sft import train_sft
from fedpref.training.trainer import PhaseMixin

SEED = 20260713
SURE = 1e-3  # the gap of the two best logits from which on answers must be equal
SFT, DPO = ("SFT, TRL", "SFT, FedPref"), ("DPO, TRL", "DPO, TRL precomputed", "DPO, FedPref")
ONE, OURS = "one by one", "FedPref"
HEADINGS = {"sft": "SFT", "dpo": "DPO", "generation": "Generation", "logps": "Log-probs"}
PARTS = tuple(HEADINGS)
CHECKED = 2  # pairs whose log-probs are compared with float64's


@dataclass(frozen=True)
class Lap:
    """One way's turn: seconds without what was spent once on the reference, and losses by step."""

    seconds: float
    reference: float
    losses: list[float]
    peak_mib: float


@dataclass(frozen=True)
class Row:
    """A way of the table: medians over its laps. `things` are pairs or reports."""

    way: str
    things: int
    seconds: float
    reference: float = 0.0
    peak_mib: float | None = None
    held_mib: float | None = None
    losses: list[float] = field(default_factory=list)
    laps: list[float] = field(default_factory=list)
    warm_up: float | None = None

    @property
    def rate(self) -> float:
        """Pairs or reports a second."""
        return self.things / self.seconds


@dataclass(frozen=True)
class Work:
    """What all ways are given."""

    base: BaseModel
    spec: AdapterSpec
    pairs: Sequence[EncodedPair]
    prompts: Sequence[Sequence[int]]
    settings: TrainingSettings
    batch_size: int
    max_new_tokens: int


def load_base(arguments: argparse.Namespace) -> BaseModel:
    """Return the base model that the arguments name."""
    if arguments.shape:
        device = "cpu" if arguments.device == "auto" else arguments.device
        dtype = "float32" if arguments.dtype == "auto" else arguments.dtype
        return random_base(arguments.shape, dtype=dtype, device=device, threads=arguments.threads)
    return load_base_model(
        arguments.model,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
    )


def prepare(arguments: argparse.Namespace) -> Work:
    """Return base model, encoded pairs and prompts, and the settings of all ways."""
    base = load_base(arguments)
    folder = arguments.sites or ensure_demo_sites()
    style = arguments.prompt_style
    pairs: list[EncodedPair] = []
    prompts: list[list[int]] = []
    for path in site_directories(folder):
        if len(pairs) >= arguments.pairs and len(prompts) >= arguments.reports:
            break
        site = SiteDirectory.load(path)
        of_site = [pair for pair in read_pairs(site) if pair.split == "train"]
        encoded, _ = encode_pairs(
            base,
            of_site[: arguments.pairs - len(pairs)],
            {report.report_id: report.text for report in site.reports},
            prompt_style=style,
            max_length=arguments.max_length,
        )
        pairs += encoded
        prompts += [
            encode_prompt(base.tokenizer, messages(report.text, style))
            for report in site.split("dev")[: arguments.reports - len(prompts)]
        ]
    settings = TrainingSettings(
        engine="tree",
        sft_learning_rate=arguments.sft_learning_rate,
        dpo_learning_rate=arguments.dpo_learning_rate,
        gradient_checkpointing=arguments.checkpointing,
        max_length=arguments.max_length,
        threads=arguments.threads,
    )
    return Work(
        base,
        make_spec(base, LoraSettings()),
        pairs,
        prompts,
        settings,
        batch_size=arguments.batch_size,
        max_new_tokens=arguments.max_new_tokens,
    )


@contextmanager
def watched_losses() -> Iterator[list[list[float]]]:
    """Yield a list that receives the step losses of each of FedPref's trainers made meanwhile."""
    losses: list[list[float]] = []
    make = PhaseMixin.__init__

    def watch(self: PhaseMixin, **kwargs: Any) -> None:
        make(self, **kwargs)
        losses.append(self.step_losses)

    with mock.patch.object(PhaseMixin, "__init__", watch):
        yield losses


def our_sft(work: Work, state: AdapterState) -> list[float]:
    """Train one epoch of SFT with FedPref; return each step's loss."""
    with watched_losses() as losses:
        train_sft(work.base, work.spec, state, work.pairs, work.settings, seed=0)
    return losses[0]


def our_dpo(work: Work, state: AdapterState) -> tuple[list[float], float]:
    """Train one epoch of DPO with FedPref; return losses and the seconds of the reference."""
    start = seconds_now(work.base.device)
    reference = sequence_logps(work.base, work.spec, state, work.pairs, work.settings)
    seconds = seconds_now(work.base.device) - start
    with watched_losses() as losses:
        train_dpo(work.base, work.spec, state, work.pairs, reference, work.settings, seed=0)
    return losses[0], seconds


def run_way(way: str, work: Work, state: AdapterState) -> Lap:
    """Return one turn of a way of SFT or DPO from the adapter `state`."""
    base, spec, pairs, settings = work.base, work.spec, work.pairs, work.settings
    peer = partial(stock_dpo, base, spec, state, pairs, settings)
    ways: dict[str, Callable[[], tuple[list[float], float]]] = {
        "SFT, TRL": lambda: (stock_sft(base, spec, state, pairs, settings), 0.0),
        "SFT, FedPref": lambda: (our_sft(work, state), 0.0),
        "DPO, TRL": lambda: peer(precompute=False),
        "DPO, TRL precomputed": lambda: peer(precompute=True),
        "DPO, FedPref": lambda: our_dpo(work, state),
    }
    start_peak(base.device)
    start = seconds_now(base.device)
    losses, reference = ways[way]()
    seconds = seconds_now(base.device) - start
    return Lap(seconds - reference, reference, losses, peak_mib(base.device))


def answer(way: str, work: Work, state: AdapterState) -> tuple[list[Tokens], Lap]:
    """Return one turn of a way of generation with the adapter `state`: answers in order, and it."""
    base, new = work.base, work.max_new_tokens
    start_peak(base.device)
    start = seconds_now(base.device)
    if way == ONE:
        answers = one_by_one(base, work.spec, state, work.prompts, new)
    else:
        size = work.batch_size
        given = generate(base, work.spec, state, work.prompts, batch_size=size, max_new_tokens=new)
        answers = [item.token_ids for item in given]
    seconds = seconds_now(base.device) - start
    return answers, Lap(seconds, 0.0, [], peak_mib(base.device))


def take_turns(
    ways: Sequence[str], repeats: int, run: Callable[[str], Lap], *, warm_up: bool
) -> dict[str, list[Lap]]:
    """Return the laps of each way, with `warm_up` one more at first.

    The ways take turns, so that a slow minute strikes all of them.
    """
    laps: dict[str, list[Lap]] = {way: [] for way in ways}
    for turn in range(0 if warm_up else 1, repeats + 1):
        for way in ways:
            laps[way].append(run(way))
            seconds = laps[way][-1].seconds
            print(f"  {turn or 'warm-up':>7}  {way:22}{seconds:9.2f} s", flush=True)
    return laps


def row_of(way: str, things: int, laps: Sequence[Lap], *, warm_up: bool) -> Row:
    """Return the medians of a way's laps without its warm-up, which compiles on a GPU."""
    first, laps = (laps[0].seconds, laps[1:]) if warm_up else (None, laps)
    return Row(
        way,
        things,
        warm_up=first,
        seconds=median(lap.seconds for lap in laps),
        reference=median(lap.reference for lap in laps),
        losses=laps[0].losses,
        laps=[lap.seconds for lap in laps],
    )


def largest_group(pairs: Sequence[EncodedPair], size: int) -> Sequence[EncodedPair]:
    """Return the accumulation group with the most tokens."""
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return max(groups, key=lambda group: sum(pair.length for pair in group))


def _peak(way: str, arguments: argparse.Namespace, state: AdapterState) -> tuple[float, float]:
    """Return a way's peak and what was held before it began; in a process of its own."""
    work = prepare(arguments)
    held = memory_mib(work.base.device)
    if way in (ONE, OURS):
        size = 1 if way == ONE else work.batch_size
        longest = sorted(work.prompts, key=len)[-size:]
        return answer(way, replace(work, prompts=longest), state)[1].peak_mib, held
    group = largest_group(work.pairs, work.settings.accumulation)
    return run_way(way, replace(work, pairs=group), state).peak_mib, held


def peak_of(way: str, arguments: argparse.Namespace, state: AdapterState) -> tuple[float, float]:
    """Return the peak of a way in a fresh process, and what that held before, in MiB."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(_peak, way, arguments, state).result()


def with_peak(
    row: Row, laps: Sequence[Lap], state: AdapterState, arguments: argparse.Namespace, device: str
) -> Row:
    """Return the row with its peak: that of its laps on a GPU, of a fresh process elsewhere."""
    if device != "cpu":
        return replace(row, peak_mib=max(lap.peak_mib for lap in laps))
    if not arguments.memory:
        return row
    peak, held = peak_of(row.way, arguments, state)
    return replace(row, peak_mib=peak, held_mib=held)


def deviation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest relative distance of two loss curves, step by step."""
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


def measure_training(
    ways: Sequence[str], work: Work, state: AdapterState, arguments: argparse.Namespace
) -> list[Row]:
    """Return the rows of SFT's or DPO's ways."""
    device = work.base.device
    warm_up = device != "cpu"
    laps = take_turns(
        ways, arguments.repeats, lambda way: run_way(way, work, state), warm_up=warm_up
    )
    rows = [row_of(way, len(work.pairs), laps[way], warm_up=warm_up) for way in ways]
    return [with_peak(row, laps[row.way], state, arguments, device) for row in rows]


def measure_generation(
    work: Work, state: AdapterState, arguments: argparse.Namespace
) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of both ways, and how far their answers agree.

    With `--one-by-one N` that way answers N of the reports, once.
    """
    base, device = work.base, work.base.device
    given: dict[str, list[Tokens]] = {}
    some = replace(work, prompts=work.prompts[: arguments.one_by_one])

    def run(way: str) -> Lap:
        given[way], lap = answer(way, some if way == ONE else work, state)
        return lap

    warm_up = device != "cpu"
    once = () if arguments.one_by_one is None else (ONE,)
    often = [way for way in (ONE, OURS) if way not in once]
    laps = take_turns(once, 1, run, warm_up=False)
    laps |= take_turns(often, arguments.repeats, run, warm_up=warm_up)
    rows = [
        row_of(ONE, len(some.prompts), laps[ONE], warm_up=warm_up and ONE in often),
        row_of(OURS, len(work.prompts), laps[OURS], warm_up=warm_up),
    ]
    rows = [with_peak(row, laps[row.way], state, arguments, device) for row in rows]
    both = given[OURS][: len(some.prompts)]
    found = differences(base, work.spec, state, some.prompts, given[ONE], both)
    return rows, {
        "reports": len(some.prompts),
        "equal": len(some.prompts) - len(found),
        "ended_before_the_model": sum(
            len(b) < len(a) and is_decided(base, prompt, b)
            for prompt, a, b in zip(some.prompts, given[ONE], both, strict=True)
        ),
        "mean_tokens": {ONE: fmean(map(len, given[ONE])), OURS: fmean(map(len, both))},
        "differences": [asdict(item) for item in found],
    }


def table(heading: str, rows: Sequence[Row], unit: str) -> str:
    """Return the lines of a table, at most 80 columns; ratios are to the first row."""
    first = rows[0]
    lines = [f"{heading:22} {unit:>9} {'ratio':>6} {'once, s':>8} {'peak MiB':>9} {'ratio':>6}"]
    for row in rows:
        line = f"{row.way:22} {row.rate:9.3f} {row.rate / first.rate:6.2f}"
        line += f" {row.reference:8.1f}" if row.reference else f" {'':8}"
        if row.peak_mib is not None and first.peak_mib is not None:
            line += f" {row.peak_mib:9,.0f} {row.peak_mib / first.peak_mib:6.2f}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def hardware(device: str) -> dict[str, Any]:
    """Return what the figures were measured on."""
    found = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments as they are written down: of folders only the names."""
    return {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name != "out"
    } | {"model": Path(arguments.model).name}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sites", type=Path, help="folder of site directories (the demo's)")
    parser.add_argument("--model", default="demo", help="base model: demo, or a folder")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="instead: random weights")
    parser.add_argument(
        "--parts",
        type=lambda words: words.split(","),
        default=list(PARTS),
        help="which, separated by commas: " + ", ".join(PARTS),
    )
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--reports", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompt-style", choices=("full", "compact"), default="full")
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--one-by-one",
        type=int,
        metavar="N",
        help="only the first N reports are answered one by one, in one turn without warm-up",
    )
    parser.add_argument("--sft-learning-rate", type=float, default=2e-4)
    parser.add_argument("--dpo-learning-rate", type=float, default=2e-4)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return arguments


def deviations(rows: Sequence[Row]) -> dict[str, float]:
    """Return how far each other way's losses are from the first way's."""
    return {row.way: deviation(row.losses, rows[0].losses) for row in rows[1:]}


def losses_text(rows: Sequence[Row]) -> str:
    """Return a line a way: first and last loss, and how far any step is from the first way's."""
    first = rows[0]
    lines = [f"{'Loss of a step':22} {'first':>9} {'last':>9}  largest distance, relative"]
    for row in rows:
        line = f"{row.way:22} {row.losses[0]:9.6f} {row.losses[-1]:9.6f}"
        far = "" if row is first else f"  {deviation(row.losses, first.losses):.1e}"
        lines.append(line + far)
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; print and write each part as it ends. Return 1 if log-probs are wrong."""
    arguments = parse(words)
    work = prepare(arguments)
    base = work.base
    print(
        f"{base.name and Path(base.name).name}, {base.dtype}, {base.device}, "
        f"{arguments.threads} thread(s), {len(work.pairs)} pairs, {len(work.prompts)} reports, "
        f"{arguments.prompt_style} prompt",
        flush=True,
    )
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "hardware": hardware(base.device),
        "arguments": settings_of(arguments),
        "tokens": tokens_of(work.pairs),
    }
    print("  mean tokens: " + ", ".join(f"{k} {v:.0f}" for k, v in result["tokens"].items()))

    def ended(part: str, note: str, rows: Sequence[Row] = (), unit: str = "", **more: Any) -> None:
        """Print the part's table and note, and write them; what comes next may meet a limit."""
        if rows:
            more["rows"] = [asdict(row) for row in rows]
            print("\n" + table(HEADINGS[part], rows, unit))
        print(f"\n{note}\n", flush=True)
        result[part] = {**more, "note": note.splitlines()}
        write(arguments.out, result)

    parts = arguments.parts
    state = initial_state(work.spec, SEED)
    if "sft" in parts:
        rows = measure_training(SFT, work, state, arguments)
        ended("sft", losses_text(rows), rows, "pairs/s", deviation=deviations(rows))
        if parts != ["sft"]:
            trained = train_sft(base, work.spec, state, work.pairs, work.settings, seed=0)
            state = state if trained is None else trained.state
    if "dpo" in parts:
        rows = measure_training(DPO, work, state, arguments)
        ended("dpo", losses_text(rows), rows, "pairs/s", deviation=deviations(rows))
    if "generation" in parts:
        rows, agreement = measure_generation(work, state, arguments)
        ended("generation", agreement_text(agreement), rows, "reports/s", agreement=agreement)
    if "logps" in parts:
        pairs = work.pairs[:CHECKED]
        largest = tree_deviation(base, work.spec, state, pairs, work.settings)
        good = largest <= LIMIT
        ended("logps", logps_text(len(pairs), largest), largest=largest, limit=LIMIT, good=good)
        return 0 if good else 1
    return 0


def write(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write what has been measured by now."""
    if path is not None:
        atomic_write(path, json.dumps(result, indent=1) + "\n")


def tokens_of(pairs: Sequence[EncodedPair]) -> dict[str, float]:
    """Return mean lengths of the pairs, and what all their prompts begin with."""
    return {
        "prompt": fmean(len(pair.prompt_ids) for pair in pairs),
        "in common": float(len(common_prefix([pair.prompt_ids for pair in pairs]))),
        "chosen": fmean(len(pair.chosen_ids) for pair in pairs),
        "rejected": fmean(len(pair.rejected_ids) for pair in pairs),
    }


def logps_text(pairs: int, largest: float) -> str:
    """Return the line on log-probs."""
    verdict = "within" if largest <= LIMIT else "NOT within"
    return (
        f"Log-probs of {pairs} pairs in float32 trees: furthest from float64 by {largest:.1e}, "
        f"{verdict} {LIMIT:.0e}"
    )


def agreement_text(agreement: Mapping[str, Any]) -> str:
    """Return the lines on equal answers and on those that differ where the model was sure."""
    found = agreement["differences"]
    sure = [item for item in found if item["gap"] > SURE]
    lengths = ", ".join(f"{way} {mean:.1f}" for way, mean in agreement["mean_tokens"].items())
    lines = [
        f"Equal answers: {agreement['equal']} of {agreement['reports']}, of which FedPref ended "
        f"{agreement['ended_before_the_model']} before the model did",
        f"Mean tokens: {lengths}",
        f"Different where the two best logits are within {SURE:g}: {len(found) - len(sure)}; "
        f"elsewhere: {len(sure)}",
    ]
    lines += [f"  report {i['report']}, token {i['token']}, gap {i['gap']:.4f}" for i in sure]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
