"""Does the demo learn? FedPref's rounds against its round 0, over three seeds, with intervals.

    python benchmarks/learning.py

The six synthetic demo sites, without Flower: each round, every site trains with the very code that
its SuperNode runs (`LocalSite`), the adapters are averaged by pairs, every site evaluates on its
development reports. Settings are the defaults of `fedpref.config`; this script only measures and is
not for tuning them. Prints tables, writes everything to a JSON file, and exits with 1 unless the
last round beats round 0: lower end of the paired 95 % interval of the client mean above 0, and the
worst site not lower. Takes about ten minutes on two cores; no claim about medicine follows.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpref.config import RunConfig
from fedpref.demo.sites import ensure_demo_sites
from fedpref.evaluation import paired_cluster_bootstrap, select_round
from fedpref.evaluation.bootstrap import STATISTICS, counts_array
from fedpref.evaluation.metrics import EvaluationCounts, RoundMetrics, client_mean, summarise
from fedpref.federation.aggregation import weighted_mean
from fedpref.files import atomic_write

SEEDS = (20260713, 20260714, 20260715)
PROCESSES = 2
BOOTSTRAP_SEED = 0


def end_with_parent() -> None:
    """End this worker as soon as the benchmark itself ends, also if that was killed."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_seed(folder: str, seed: int, rounds: int, model: str) -> dict[str, Any]:
    """Return one seed's rounds: counts by site, each report's tp, fp, fn, and seconds by phase."""
    from fedpref.adapter_state import initial_state
    from fedpref.data import site_directories
    from fedpref.federation.site_work import LocalSite

    federation = f"learning-{seed}"
    config = RunConfig.model_validate(
        {"federation": federation, "sites": folder, "seed": seed, "model": {"path": model}}
    )
    start = time.perf_counter()
    sites = [LocalSite(config, path) for path in site_directories(folder)]
    result: dict[str, Any] = {
        "seed": seed,
        "config": config.digest,
        "hashes": dict(sites[0].hashes()),
        "versions": dict(sites[0].versions()),
        "parameters": sites[0].spec.parameter_count,
        "seconds": {"load": time.perf_counter() - start},
        "rounds": [],
    }
    adapter, root = initial_state(sites[0].spec, seed), None
    for round_ in range(rounds + 1):
        start = time.perf_counter()
        trained = {site.name: site.train(round_, adapter, root) for site in sites}
        updates = [update for update in trained.values() if update is not None]
        adapter = weighted_mean(
            [update.state for update in updates], [update.trained_pair_count for update in updates]
        )
        root = adapter if root is None else root
        middle = time.perf_counter()
        counts = {site.name: site.evaluate(round_, adapter) for site in sites}
        seconds = {"training": middle - start, "evaluation": time.perf_counter() - middle}
        result["rounds"].append(
            {
                "pairs": {
                    name: 0 if u is None else u.trained_pair_count for name, u in trained.items()
                },
                "counts": {name: None if c is None else c.to_dict() for name, c in counts.items()},
                "reports": {k: v for site in sites for k, v in _report_rows(site, round_).items()},
                "seconds": seconds,
            }
        )
        done = f"{seconds['training']:.0f} s training, {seconds['evaluation']:.0f} s evaluation"
        print(f"seed {seed}, round {round_}: {done}", flush=True)
    return result


def _report_rows(site: Any, round_: int) -> dict[str, dict[str, Any]]:
    """Return patient and tp, fp, fn of each report that a site has just evaluated."""
    from fedpref.evaluation.predictions import read_predictions

    (path,) = (site.state_dir / "predictions").glob(f"round-{round_}-*.jsonl")
    return {
        f"{site.name}/{row.report_id}": {
            "site": site.name,
            "patient": f"{site.name}/{row.patient_id}",
            "counts": [row.counts.tp, row.counts.fp, row.counts.fn],
        }
        for row in read_predictions(path)
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means over seeds by round, and each round's effect over round 0."""
    rounds = range(len(runs[0]["rounds"]))
    metrics = [[_metrics(run["rounds"][t]["counts"]) for run in runs] for t in rounds]
    table = [_means(of_round) for of_round in metrics]
    first = runs[0]["rounds"][0]["reports"]
    names = sorted(first)
    counts = [
        counts_array(
            [
                {name: row["counts"] for name, row in run["rounds"][t]["reports"].items()}
                for run in runs
            ],
            names,
        )
        for t in rounds
    ]
    effects = [
        {
            statistic: asdict(
                paired_cluster_bootstrap(
                    counts[t],
                    counts[0],
                    [first[name]["site"] for name in names],
                    [first[name]["patient"] for name in names],
                    statistic=statistic,
                    seed=BOOTSTRAP_SEED,
                )
            )
            for statistic in STATISTICS
        }
        for t in rounds[1:]
    ]
    seconds = {
        phase: _mean([run["rounds"][t]["seconds"][half] for run in runs for t in which])
        for phase, half, which in (
            ("SFT round", "training", rounds[:1]),
            ("DPO round", "training", rounds[1:]),
            ("evaluation of a round", "evaluation", rounds),
        )
        if which
    }
    return {
        "dev_reports": _by_site(first),
        "pairs": runs[0]["rounds"][0]["pairs"],
        "rounds": table,
        "effects_over_round_0": effects,
        "selected_round": select_round(
            [row["client_mean"] for row in table], [row["worst_site"] for row in table]
        ),
        "seconds": seconds,
    }


def holds(result: Mapping[str, Any]) -> bool:
    """Return whether the last round beats round 0 with certainty and no worst site is lower."""
    if not result["effects_over_round_0"]:
        return False
    effects = result["effects_over_round_0"][-1]
    low = effects["client_mean"]["low"]
    worst = effects["worst_site"]["effect"]
    return low is not None and low > 0 and worst is not None and worst >= 0


def _metrics(counts: Mapping[str, Mapping[str, int] | None]) -> RoundMetrics:
    return summarise(
        {n: None if c is None else EvaluationCounts.from_dict(c) for n, c in counts.items()}
    )


def _means(seeds: Sequence[RoundMetrics]) -> dict[str, Any]:
    names = [name for name in RoundMetrics.__dataclass_fields__ if name not in {"sites", "total"}]
    row: dict[str, Any] = {n: client_mean(getattr(m, n) for m in seeds) for n in names}
    row["sites"] = {site: client_mean(m.sites[site] for m in seeds) for site in seeds[0].sites}
    row["by_seed"] = [{n: getattr(m, n) for n in names} for m in seeds]
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _by_site(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    sites = [row["site"] for row in reports.values()]
    return {site: sites.count(site) for site in sorted(set(sites))}


def show(result: Mapping[str, Any]) -> None:
    """Print the tables of a summary."""
    names = list(result["rounds"][0]["sites"])
    print("\nSynthetic demo data. loc+dis F1 in %, means over seeds.\n")
    shown = ("client_mean", "worst_site", "disease_client_mean", "preference_accuracy")
    more = ("projection_rate", "truncation_rate", "false_positive_rate")
    heads = ["mean", "worst", "disease", "pref.", "proj.", "trunc.", "FPR", *names]
    print("round  " + "".join(f"{head:>8}" for head in heads))
    for number, row in enumerate(result["rounds"]):
        values = [*(row[name] for name in (*shown, *more)), *row["sites"].values()]
        print(f"{number:5}  " + "".join(f"{_percent(value):>8}" for value in values))
    for label, key in (("dev reports", "dev_reports"), ("pairs", "pairs")):
        print(
            f"{label:7}{'':{8 * 7 - len(label) + 7}}"
            + "".join(f"{result[key].get(name, 0):>8}" for name in names)
        )
    print("\nEffect over round 0 in points, paired 95 % interval (patients within sites)")
    for number, row in enumerate(result["effects_over_round_0"], start=1):
        for statistic, effect in row.items():
            print(f"{number:5}  {statistic:12} {_interval(effect)}")
    print(f"\nselected round: {result['selected_round']}")
    print("seconds of one process, all six sites one after the other")
    for phase, value in result["seconds"].items():
        print(f"  {phase:24} {value:7.1f}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _interval(effect: Mapping[str, Any]) -> str:
    point = "–" if effect["effect"] is None else f"{100 * effect['effect']:+.2f}"
    if effect["degenerate"]:
        return f"{point} (no interval: {effect['degenerate']})"
    return f"{point} ({100 * effect['low']:+.2f} … {100 * effect['high']:+.2f})"


def main() -> int:
    """Run the benchmark; return 0 if the demo learned, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--rounds", type=int, default=RunConfig().rounds)
    parser.add_argument("--model", default="demo", help="base model: demo, or a folder")
    parser.add_argument("--out", type=Path, default=Path("runs/learning.json"))
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fedpref-learning-") as scratch:
        # A copy: stored roots and references of an earlier run would shorten this one.
        folder = Path(scratch) / "sites"
        shutil.copytree(ensure_demo_sites(), folder, ignore=shutil.ignore_patterns("state"))
        print(f"preparing the sites: {time.perf_counter() - begun:.1f} s", flush=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(PROCESSES, context, initializer=end_with_parent) as pool:
            futures = [
                pool.submit(run_seed, str(folder), seed, arguments.rounds, arguments.model)
                for seed in arguments.seeds
            ]
            runs = [future.result() for future in futures]
    result = summary(runs)
    learned = holds(result)
    total = time.perf_counter() - begun
    content = {"what": "synthetic demo data", "learned": learned, "seconds": total, **result}
    content["runs"] = [
        {**run, "rounds": [{k: v for k, v in r.items() if k != "reports"} for r in run["rounds"]]}
        for run in runs
    ]
    atomic_write(arguments.out, json.dumps(content, indent=1, sort_keys=True) + "\n")
    show(result)
    print(
        f"\n{'The demo learns' if learned else 'NOT SHOWN that the demo learns'}: last round over "
        f"round 0. {total:.0f} s in all. {arguments.out}"
    )
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
