"""How fast is the paired cluster bootstrap, and is it what a plain loop computes?

    python benchmarks/bootstrap.py

Two arms on 600 patients of six sites, 10,000 draws, for each statistic and for one and three
training seeds; against a loop over draws, sites and reports in plain Python, measured on 200 draws
of the same run and extrapolated. Prints a table; exits with 1 if the loop's 200 draws differ, or if
10,000 draws take a second or more of one core. Times are CPU seconds of all threads together.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedpref.evaluation import micro_f1, paired_cluster_bootstrap
from fedpref.evaluation.bootstrap import (
    PERCENTILES,
    STATISTICS,
    Integers,
    Statistic,
    draw_weights,
    stratum_generator,
)
from fedpref.evaluation.metrics import client_mean, worst_site
from fedpref.files import atomic_write

DRAWS, LOOP_DRAWS, REPEATS, LIMIT = 10_000, 200, 5, 1.0
SEED = 0


def cohort(
    rng: np.random.Generator, seeds: int, *, patients: int = 600, sites: int = 6
) -> tuple[Integers, Integers, list[str], list[str]]:
    """Return counts (seeds, reports, 3) of two arms, and each report's site and patient.

    A tenth of the patients have a second report.
    """
    patient = [f"p{i}" for i in [*range(patients), *range(patients // 10)]]
    site = [f"site-{int(name[1:]) % sites + 1}" for name in patient]
    a, b = rng.integers(0, 4, size=(2, seeds, len(patient), 3))
    return a, b, site, patient


def loop_value(counts: Any, strata: Sequence[Sequence[int]], statistic: Statistic) -> float:
    """Return the mean over seeds of the statistic, from the rows of each stratum."""
    values = []
    for run in counts:
        f1 = [
            micro_f1(*(sum(int(run[row][part]) for row in rows) for part in range(3)))
            for rows in strata
        ]
        value = worst_site(f1) if statistic == "worst_site" else client_mean(f1)
        assert value is not None
        values.append(value)
    return sum(values) / len(values)


def loop_strata(
    site: Sequence[Any], patient: Sequence[Any], statistic: Statistic
) -> list[list[list[int]]]:
    """Return the rows of each patient of each stratum, both sorted by name."""
    names = ["all"] * len(site) if statistic == "global" else list(site)
    return [
        [
            [row for row in range(len(names)) if names[row] == name and patient[row] == person]
            for person in sorted({p for p, n in zip(patient, names, strict=True) if n == name})
        ]
        for name in sorted(set(names))
    ]


def loop_bootstrap(
    a: Any,
    b: Any,
    strata: Sequence[Sequence[Sequence[int]]],
    statistic: Statistic,
    draws: int,
    seed: int,
) -> list[float]:
    """Return the difference a − b of every draw, draw by draw and report by report."""
    weights = [
        draw_weights(stratum_generator(seed, number), len(people), draws).tolist()
        for number, people in enumerate(strata)
    ]
    differences = []
    for draw in range(draws):
        drawn = [
            [
                row
                for rows, times in zip(people, weight[draw], strict=True)
                for _ in range(times)
                for row in rows
            ]
            for people, weight in zip(strata, weights, strict=True)
        ]
        differences.append(loop_value(a, drawn, statistic) - loop_value(b, drawn, statistic))
    return differences


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(statistic: Statistic, seeds: int) -> dict[str, Any]:
    """Return the times of both ways, and whether their intervals of 200 draws are equal."""
    a, b, site, patient = cohort(np.random.default_rng(seeds), seeds)
    strata = loop_strata(site, patient, statistic)
    lists = a.tolist(), b.tolist()

    def fast(draws: int) -> Any:
        return paired_cluster_bootstrap(
            a, b, site, patient, statistic=statistic, draws=draws, seed=SEED
        )

    start = time.process_time()
    loop = loop_bootstrap(*lists, strata, statistic, LOOP_DRAWS, SEED)
    loop_seconds = (time.process_time() - start) / LOOP_DRAWS * DRAWS
    expected = np.percentile(loop, PERCENTILES)
    found = fast(LOOP_DRAWS)
    times = [cpu_seconds(lambda: fast(DRAWS)) for _ in range(REPEATS)]
    return {
        "statistic": statistic,
        "seeds": seeds,
        "seconds": median(times),
        "slowest": max(times),
        "loop_seconds": loop_seconds,
        "ratio": loop_seconds / median(times),
        "equal": bool(np.allclose((found.low, found.high), expected, rtol=0, atol=1e-12)),
    }


def main() -> int:
    """Run the benchmark; return 0 if it is right and quick, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()
    print(f"{DRAWS} draws, 600 patients, six sites, two arms; CPU seconds\n")
    print("statistic    seeds  median  slowest      loop   ratio  equal on 200")
    rows = []
    for seeds in (1, 3):
        for statistic in STATISTICS:
            row = measure(statistic, seeds)
            rows.append(row)
            print(
                f"{statistic:12} {seeds:5} {row['seconds']:7.3f} {row['slowest']:8.3f} "
                f"{row['loop_seconds']:9.1f} {row['ratio']:7.0f}  {row['equal']}",
                flush=True,
            )
    if arguments.out:
        atomic_write(arguments.out, json.dumps(rows, indent=1) + "\n")
    good = all(row["equal"] and row["seconds"] < LIMIT for row in rows)
    print(f"\n{'Right and under' if good else 'NOT right, or not under'} {LIMIT:g} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
