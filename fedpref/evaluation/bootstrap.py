"""The interval of a difference between two arms: a paired patient-cluster bootstrap. Pure.

Reports of one patient are not independent, so patients are what is resampled; the two arms are
read on the same reports, so every draw weighs both alike. A draw is a vector of weights over
patients (how often each was drawn), so that all draws are matrix products over counts per patient.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Statistic = Literal["client_mean", "worst_site", "global"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STATISTICS: Final[tuple[Statistic, ...]] = get_args(Statistic)
PERCENTILES: Final = (2.5, 97.5)
NO_POSITIVES: Final = "an arm has no positives on either side"
# Weights held at once: 8 MB as integers and as much again as floats.
_BATCH_WEIGHTS: Final = 1_000_000
# Draws that differ by less than rounding errors are one and the same value.
_SAME: Final = 1e-12


@dataclass(frozen=True)
class Effect:
    """A difference between two arms, a − b, with its 95 % percentile interval.

    `degenerate` says why there is no interval (`low` and `high` are then None), else it is None.
    `effect` is None if an arm has no F1 at all.
    """

    effect: float | None
    low: float | None
    high: float | None
    degenerate: str | None


def paired_cluster_bootstrap(
    counts_a: ArrayLike,
    counts_b: ArrayLike,
    site: ArrayLike,
    patient: ArrayLike,
    *,
    statistic: Statistic = "client_mean",
    draws: int = 10_000,
    seed: int = 0,
) -> Effect:
    """Return the effect of arm a over arm b (a − b) on a micro-F1 statistic, with its interval.

    Counts are (seeds, reports, 3) whole numbers tp, fp, fn of the same reports in the same order;
    `site` and `patient` are (reports,). "client_mean" and "worst_site" resample patients within
    sites (a cluster is a patient at a site); "global" pools all reports and resamples patients
    without sites, so that equal patient ids are one cluster there. The statistic is computed per
    seed and averaged over seeds inside each draw (DESIGN 1.9). A site without positives in a draw
    is left out of that draw's mean and minimum, as it is outside the bootstrap.

    There is no interval, but a reason, if only one patient was seen, an arm has no positives, some
    draw holds none, or all draws are equal. Raises ValueError for shapes or values that cannot be.
    """
    both = paired_counts(counts_a, counts_b)
    if draws < 1:
        raise ValueError("at least one draw is needed")
    reports = both.shape[2]
    sites, patients = np.asarray(site), np.asarray(patient)
    if sites.shape != (reports,) or patients.shape != (reports,):
        raise ValueError(
            f"site {sites.shape} and patient {patients.shape} do not name {reports} reports each"
        )
    strata = cluster_counts(both, None if statistic == "global" else sites, patients)
    observed = [part.sum(axis=0) for part in strata]
    if len(np.unique(patients)) <= 1:  # nobody at all, or nobody to draw instead
        effect = observed_effect(observed, statistic)
        reason = NO_POSITIVES if effect is None else "all reports are of one patient"
        return Effect(effect, None, None, reason)
    totals = [
        draw_totals(part, stratum_generator(seed, stratum), draws)
        for stratum, part in enumerate(strata)
    ]
    return effect_of_draws(observed, totals, statistic)


def observed_effect(observed: Sequence[Floats], statistic: Statistic) -> float | None:
    """Return the statistic of a − b from each stratum's (arms, seeds, 3) counts; None without F1.

    "global" expects one stratum that holds everything. ValueError for another statistic.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic {statistic!r} is none of {', '.join(STATISTICS)}")
    return _finite(_difference([part[None] for part in observed], statistic)[0])


def effect_of_draws(
    observed: Sequence[Floats], totals: Sequence[Floats], statistic: Statistic
) -> Effect:
    """Return the effect of each stratum's observed counts, its interval from the draws' totals.

    `observed` are (arms, seeds, 3), `totals` (draws, arms, seeds, 3), one array a stratum in the
    same order; draw d of all strata together is one resampled federation. Where there is no
    interval, `degenerate` says why.
    """
    effect = observed_effect(observed, statistic)
    if effect is None:
        return Effect(None, None, None, NO_POSITIVES)
    differences = _difference(totals, statistic)
    undefined = int(np.isnan(differences).sum())
    if undefined:
        reason = f"{undefined} of {len(differences)} draws have an arm without positives"
        return Effect(effect, None, None, reason)
    if np.ptp(differences) <= _SAME:
        return Effect(effect, None, None, "all draws are equal")
    low, high = np.percentile(differences, PERCENTILES)
    return Effect(effect, float(low), float(high), None)


def counts_array(
    runs: Sequence[Mapping[str, Sequence[int]]], report_ids: Sequence[str]
) -> Integers:
    """Return (runs, reports, 3) counts in the order of `report_ids`, one run a seed.

    Each run maps report ids to tp, fp, fn. ValueError if a run has other reports than these: two
    arms are only compared on the same ones.
    """
    expected = set(report_ids)
    if len(expected) != len(report_ids):
        raise ValueError("a report id is given twice")
    for number, run in enumerate(runs):
        if run.keys() != expected:
            raise ValueError(
                f"run {number} lacks {len(expected - run.keys())} of the reports and has "
                f"{len(run.keys() - expected)} others: a paired comparison needs the same reports"
            )
    flat = [[list(run[name]) for name in report_ids] for run in runs]
    return np.array(flat, dtype=np.int64).reshape(len(runs), len(report_ids), 3)


def paired_counts(counts_a: ArrayLike, counts_b: ArrayLike) -> Integers:
    """Return (2, seeds, reports, 3): the counts of both arms, checked.

    ValueError unless both are (seeds, reports, 3) with whole numbers, none of them negative.
    """
    a, b = np.asarray(counts_a), np.asarray(counts_b)
    if a.shape != b.shape:
        raise ValueError(f"the arms have different shapes, {a.shape} and {b.shape}")
    if a.ndim != 3 or a.shape[2] != 3 or a.shape[0] == 0:
        raise ValueError(f"counts are (seeds, reports, 3), not {a.shape}")
    both = np.stack([a, b])
    if both.size and not (np.issubdtype(both.dtype, np.number) and np.isfinite(both).all()):
        raise ValueError("counts are finite numbers")
    whole = both.astype(np.int64)
    if (whole != both).any() or (whole < 0).any():
        raise ValueError("counts are whole numbers, never negative")
    return whole


def cluster_counts(
    counts: Integers, site: NDArray[np.generic] | None, patient: NDArray[np.generic]
) -> list[Floats]:
    """Return the counts summed per patient, one array a site in sorted order.

    `counts` is (arms, seeds, reports, 3); each result is (patients, arms, seeds, 3). Without
    `site`, all reports are one stratum.
    """
    strata = []
    names = [None] if site is None else list(np.unique(site))
    for name in names:
        rows = np.ones(len(patient), dtype=bool) if site is None else site == name
        clusters, cluster = np.unique(patient[rows], return_inverse=True)
        sums = np.zeros((len(clusters), *counts.shape[:2], 3))
        np.add.at(sums, cluster, np.moveaxis(counts[:, :, rows], 2, 0))
        strata.append(sums)
    return strata


def stratum_generator(seed: int, stratum: int) -> np.random.Generator:
    """Return the random stream of one site's draws; it depends on no other site."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stratum])))


def draw_weights(rng: np.random.Generator, patients: int, draws: int) -> Integers:
    """Return (draws, patients) weights: how often each patient was drawn, `patients` in all a row.

    Drawing in parts from one generator gives the same rows as drawing them at once.
    """
    drawn = rng.integers(0, patients, size=(draws, patients))
    drawn += np.arange(draws)[:, None] * patients
    return np.bincount(drawn.ravel(), minlength=draws * patients).reshape(draws, patients)


def draw_totals(clusters: Floats, rng: np.random.Generator, draws: int) -> Floats:
    """Return (draws, arms, seeds, 3): the counts of one stratum in every draw, whole numbers.

    `clusters` is (patients, arms, seeds, 3), at least one patient.
    """
    flat = clusters.reshape(len(clusters), -1)
    parts = [
        draw_weights(rng, len(clusters), size).astype(np.float64) @ flat
        for size in _batches(draws, len(clusters))
    ]
    return np.concatenate(parts).reshape(draws, *clusters.shape[1:])


def micro_f1_array(counts: Floats) -> Floats:
    """Return 2·tp / (2·tp + fp + fn) over the last axis (tp, fp, fn); NaN without positives."""
    tp, fp, fn = counts[..., 0], counts[..., 1], counts[..., 2]
    positives = 2 * tp + fp + fn
    result = np.full(positives.shape, np.nan)
    np.divide(2 * tp, positives, out=result, where=positives > 0)
    return result


def _batches(draws: int, patients: int) -> Iterator[int]:
    size = max(1, _BATCH_WEIGHTS // patients)
    for start in range(0, draws, size):
        yield min(size, draws - start)


def _difference(totals: Sequence[Floats], statistic: Statistic) -> Floats:
    """Return (draws,) statistic of a − b from each stratum's (draws, arms, seeds, 3) totals."""
    if not totals:
        return np.array([np.nan])
    f1 = np.stack([micro_f1_array(part) for part in totals])
    known = ~np.isnan(f1)
    if statistic == "worst_site":
        value = np.where(known, f1, np.inf).min(axis=0)
        value[np.isinf(value)] = np.nan
    else:
        # One stratum for "global": its mean is itself.
        count = known.sum(axis=0)
        value = np.full(count.shape, np.nan)
        np.divide(np.where(known, f1, 0.0).sum(axis=0), count, out=value, where=count > 0)
    arms = value.mean(axis=2)
    difference: Floats = arms[:, 0] - arms[:, 1]
    return difference


def _finite(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
