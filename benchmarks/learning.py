"""Does the demo learn? FedPref's last round against its round 0 on the demo sites, over seeds.

    python benchmarks/learning.py --output learning.json

Runs the federation in this process (no Flower): each site's own code for SFT, DPO and evaluation,
the pair-weighted mean in between, with the default configuration. Prints client mean, worst site,
pooled F1 and preference accuracy by round (means over seeds), the paired 95 % interval of each
round minus round 0, and the seconds by phase. Learning rates are fixed; this is no tuner.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedpref.adapter_state import AdapterState, initial_state, state_digest
from fedpref.config import RunConfig, load_config
from fedpref.data import SiteDirectory, site_directories
from fedpref.demo.sites import DemoSettings, ensure_demo_sites
from fedpref.evaluation import micro_f1, paired_cluster_bootstrap, select_round
from fedpref.evaluation.bootstrap import counts_array
from fedpref.evaluation.metrics import EvaluationCounts, summarise
from fedpref.federation.aggregation import weighted_mean
from fedpref.files import atomic_write, read_jsonl

SEEDS = "20260713,20260714,20260715"
STATISTICS = ("client_mean", "worst_site", "global")
SCORES = ("client_mean", "worst_site", "pooled", "preference_accuracy", "false_positive_rate")

# Of one seed: by round the counts by report id, the counts by site; seconds by phase.
SeedResult = dict[str, Any]


def run_seed(folder: Path, config: RunConfig) -> SeedResult:
    """Return what rounds 0 to the last give for one seed; sites keep their state in `folder`."""
    from fedpref.federation.site_work import LocalSite

    seconds: dict[str, float] = {}
    with timed(seconds, "load"):
        sites = [LocalSite(config, path) for path in site_directories(folder)]
    state = initial_state(sites[0].spec, config.seed)
    root: AdapterState | None = None
    rounds = []
    for round_ in range(config.rounds + 1):
        with timed(seconds, "sft" if round_ == 0 else "dpo"):
            trained = [site.train(round_, state, root) for site in sites]
        updates = [update for update in trained if update is not None]
        state = weighted_mean([s for s, _ in updates], [float(pairs) for _, pairs in updates])
        root = state if round_ == 0 else root
        with timed(seconds, "evaluation"):
            counts = {site.name: site.evaluate(round_, state) for site in sites}
        rounds.append(
            {
                "adapter": state_digest(state),
                "pairs": {
                    site.name: 0 if update is None else update[1]
                    for site, update in zip(sites, trained, strict=True)
                },
                "sites": {name: None if c is None else c.to_dict() for name, c in counts.items()},
                "reports": {
                    name: found
                    for site in sites
                    for name, found in report_counts_of(site.state_dir, round_, state).items()
                },
            }
        )
    return {"seed": config.seed, "rounds": rounds, "seconds": seconds}


def report_counts_of(
    state_dir: Path, round_: int, state: AdapterState
) -> dict[str, tuple[int, int, int]]:
    """Return tp, fp, fn by report id from the rows that the evaluation left at the site."""
    name = f"round-{round_}-{state_digest(state)[:12]}.jsonl"
    return {
        row["report_id"]: (row["tp"], row["fp"], row["fn"])
        for _, row in read_jsonl(state_dir / "predictions" / name)
    }


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the time that the block takes to the phase's."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - started


def analyse(folder: Path, results: Sequence[SeedResult], *, draws: int) -> dict[str, Any]:
    """Return scores by round (means over seeds) and the effect of each round over round 0."""
    sites = [SiteDirectory.load(path) for path in site_directories(folder)]
    held_out = [(site.name, report) for site in sites for report in site.split("dev")]
    # Report ids are unique at a site; the arrays need them unique over the demo's sites.
    names = [report.report_id for _, report in held_out]
    where = [name for name, _ in held_out]
    patients = [report.patient_id for _, report in held_out]
    count = len(results[0]["rounds"])
    arrays = [
        counts_array([result["rounds"][t]["reports"] for result in results], names)
        for t in range(count)
    ]
    scores = [mean_scores([result["rounds"][t] for result in results]) for t in range(count)]
    effects = [
        {
            statistic: asdict(
                paired_cluster_bootstrap(
                    arrays[t], arrays[0], where, patients,
                    statistic=statistic, draws=draws, seed=0,
                )
            )
            for statistic in STATISTICS
        }
        for t in range(1, count)
    ]  # fmt: skip
    by_site = {
        site.name: [site_f1(arrays[t], where, site.name) for t in range(count)] for site in sites
    }
    return {
        "rounds": scores,
        "effects_over_round_0": effects,
        "site_f1": by_site,
        "dev_reports": {site.name: len(site.split("dev")) for site in sites},
        "pairs": results[0]["rounds"][0]["pairs"],
        "selected_round": select_round(
            [s["client_mean"] for s in scores], [s["worst_site"] for s in scores]
        ),
    }


def mean_scores(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return each score of one round, averaged over seeds; None if a seed has none."""
    metrics = [
        summarise(
            {
                name: None if counts is None else EvaluationCounts.from_dict(counts)
                for name, counts in one["sites"].items()
            }
        )
        for one in rounds
    ]
    result: dict[str, float | None] = {}
    for score in SCORES:
        values = [getattr(m, score) for m in metrics]
        known = [value for value in values if value is not None]
        result[score] = fmean(known) if len(known) == len(values) else None
    return result


def site_f1(array: Any, where: Sequence[str], site: str) -> float | None:
    """Return one site's micro-F1, averaged over seeds."""
    rows = [index for index, name in enumerate(where) if name == site]
    values = [micro_f1(*(int(x) for x in run[rows].sum(axis=0))) for run in array]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def table(analysis: Mapping[str, Any]) -> str:
    """Return the result as text, in points."""
    lines = ["round  client mean  worst site  pooled  pref. acc.  client mean − round 0 (95 %)"]
    for t, scores in enumerate(analysis["rounds"]):
        effect = analysis["effects_over_round_0"][t - 1]["client_mean"] if t else None
        lines.append(
            f"{t:5}  {points(scores['client_mean']):>11}  {points(scores['worst_site']):>10}  "
            f"{points(scores['pooled']):>6}  {points(scores['preference_accuracy']):>10}  "
            + (interval(effect) if effect else "")
        )
    lines.append("")
    last = analysis["effects_over_round_0"][-1] if analysis["effects_over_round_0"] else {}
    lines += [f"last − round 0, {name}: {interval(effect)}" for name, effect in last.items()]
    lines.append(f"selected round: {analysis['selected_round']}")
    lines += ["", "site      pairs  dev  F1 by round"]
    for name, values in analysis["site_f1"].items():
        lines.append(
            f"{name:8}  {analysis['pairs'][name]:5}  {analysis['dev_reports'][name]:3}  "
            + "  ".join(points(value) for value in values)
        )
    return "\n".join(lines)


def points(value: float | None) -> str:
    """Return a share in points, or a dash."""
    return "–" if value is None else f"{100 * value:.2f}"


def interval(effect: Mapping[str, Any]) -> str:
    """Return an effect with its interval in points, or why there is none."""
    if effect["effect"] is None or effect["degenerate"]:
        return f"{points(effect['effect'])} (no interval: {effect['degenerate']})"
    return (
        f"{100 * effect['effect']:+.2f} ({100 * effect['low']:+.2f} … {100 * effect['high']:+.2f})"
    )


def learned(analysis: Mapping[str, Any]) -> bool:
    """Return whether the client mean's interval lies above 0 and the worst site is not lower."""
    if not analysis["effects_over_round_0"]:
        return False
    last = analysis["effects_over_round_0"][-1]
    low, worst = last["client_mean"]["low"], last["worst_site"]["effect"]
    return low is not None and low > 0 and worst is not None and worst >= 0


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default=SEEDS, help="training seeds, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train-reports", type=int, default=DemoSettings().train_reports)
    parser.add_argument("--dev-reports", type=int, default=DemoSettings().dev_reports)
    parser.add_argument("--sites", type=Path, help="a folder of site directories with pairs")
    parser.add_argument("--work", type=Path, help="where sites keep state (default: temporary)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--output", type=Path, help="write everything as JSON")
    options = parser.parse_args()

    settings = DemoSettings(train_reports=options.train_reports, dev_reports=options.dev_reports)
    with tempfile.TemporaryDirectory(prefix="fedpref-learning-") as temporary:
        work = options.work or Path(temporary)
        source = options.sites or ensure_demo_sites(work / "demo", settings=settings)
        folder = work / "sites" / source.name
        if not folder.is_dir():
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("state"))
        seeds = [int(seed) for seed in options.seeds.split(",")]
        configs = [
            load_config({"seed": seed, "federation": f"learning-{seed}", "rounds": options.rounds})
            for seed in seeds
        ]
        started = time.perf_counter()
        with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(run_seed, [folder] * len(seeds), configs))
        seconds = time.perf_counter() - started
        analysis = analyse(folder, results, draws=options.draws)
    phases = {
        phase: round(fmean(result["seconds"][phase] for result in results), 1)
        for phase in results[0]["seconds"]
    }
    print(table(analysis))
    print()
    print(f"synthetic demo data; seeds {options.seeds}; seconds a seed by phase: {phases}")
    print(f"{seconds:.0f} s with {options.processes} processes")
    print("learned" if learned(analysis) else "not shown to learn")
    if options.output:
        record = {
            "config": configs[0].numeric(),
            "seeds": seeds,
            "analysis": analysis,
            "learned": learned(analysis),
            "seconds_by_phase": phases,
            "wall_seconds": round(seconds, 1),
            "runs": results,
        }
        atomic_write(options.output, json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
