"""How often the 95 % interval holds the truth: six simulated sites of 60 to 140 patients.

The client mean has a bar. The minimum over sites is not smooth, so that its interval has no such
promise: its coverage is printed, whatever it is (`pytest -s -m long`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpref.evaluation.bootstrap import (
    cluster_counts,
    draw_totals,
    effect_of_draws,
    paired_counts,
    stratum_generator,
)

PATIENTS = (60, 60, 75, 90, 110, 140)
RATE_B = np.array([0.50, 0.62, 0.58, 0.66, 0.55, 0.60])  # share of findings that arm b gets right
GAIN = np.array([0.10, 0.05, 0.04, 0.02, 0.06, 0.03])
SEEDS, COHORTS, DRAWS = 2, 1000, 1000
FINDINGS, INVENTED, SHARED = 4, 2, 0.25  # at most, a report; half width of a patient's difficulty


def true_f1(rate: Any) -> Any:
    """F1 of each site's population: 2 E[tp] / (2 E[tp] + E[fp] + E[fn])."""
    tp, fn, fp = FINDINGS / 2 * rate, FINDINGS / 2 * (1 - rate), INVENTED * (1 - rate)
    return 2 * tp / (2 * tp + fp + fn)


def site_counts(rng: np.random.Generator, patients: int, rates: Any) -> tuple[Any, Any]:
    """Counts (2, SEEDS, reports, 3) and patients; both arms share a patient's difficulty."""
    patient = np.repeat(
        np.arange(patients), rng.choice([1, 2, 3], size=patients, p=[0.7, 0.2, 0.1])
    )
    shift = rng.uniform(-SHARED, SHARED, size=patients)[patient]
    findings = rng.binomial(FINDINGS, 0.5, size=len(patient))
    arms = []
    for rate in rates:
        right = np.broadcast_to(rate + shift, (SEEDS, len(patient)))
        tp = rng.binomial(findings, right)
        arms.append(np.stack([tp, rng.binomial(INVENTED, 1 - right), findings - tp], axis=-1))
    return paired_counts(*arms), patient


@pytest.mark.long
def test_coverage_of_the_client_mean_and_of_the_worst_site(
    record_property: Callable[[str, object], None],
) -> None:
    rng = np.random.default_rng(20260713)
    f1_a, f1_b = true_f1(RATE_B + GAIN), true_f1(RATE_B)
    truth = {"client_mean": np.mean(f1_a - f1_b), "worst_site": f1_a.min() - f1_b.min()}
    hits = dict.fromkeys(truth, 0)
    for number in range(COHORTS):
        observed, totals = [], []
        for site, patients in enumerate(PATIENTS):
            counts, patient = site_counts(rng, patients, (RATE_B[site] + GAIN[site], RATE_B[site]))
            (clusters,) = cluster_counts(counts, None, patient)
            observed.append(clusters.sum(axis=0))
            totals.append(draw_totals(clusters, stratum_generator(number, site), DRAWS))
        for statistic, true in truth.items():
            effect = effect_of_draws(observed, totals, statistic)  # type: ignore[arg-type]
            assert effect.low is not None
            assert effect.high is not None
            hits[statistic] += effect.low <= true <= effect.high
    coverage = {statistic: count / COHORTS for statistic, count in hits.items()}
    for statistic, share in coverage.items():
        record_property(f"coverage of {statistic}", share)
        print(f"coverage of {statistic}: {share:.1%} of {COHORTS} cohorts")  # noqa: T201
    assert 0.93 <= coverage["client_mean"] <= 0.97
