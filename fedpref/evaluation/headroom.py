"""The candidate contrast of a pool: oracle headroom, coverage, collapse (DESIGN 1.11). Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpref.evaluation.bootstrap import Effect, Integers, paired_cluster_bootstrap
from fedpref.evaluation.metrics import micro_f1
from fedpref.preference.contrast import ReportContrast
from fedpref.task import MatchCounts


@dataclass(frozen=True)
class PoolContrast:
    """One pool of candidates on annotated reports; F1s and shares are fractions, None without data.

    `f1` is the loc+dis micro-F1 of each candidate, over all reports, `best` the candidate with the
    highest one (the first of equals). `oracle_f1` takes the best candidate of every report by
    composite score. `headroom` = `oracle_f1` − `baseline_f1`. `usable` reports form a pair,
    `coverage` is their share; all candidates of `identical` reports parse to one structure.
    `over_best` is the oracle minus the best candidate, with its 95 % interval over patients.
    """

    pool: str
    candidates: tuple[str, ...]
    reports: int
    patients: int
    f1: dict[str, float | None]
    best: str | None
    baseline: str | None
    baseline_f1: float | None
    oracle_f1: float | None
    headroom: float | None
    usable: int
    coverage: float | None
    identical: int
    identical_share: float | None
    over_best: Effect

    def to_dict(self) -> dict[str, Any]:
        """Return the contrast as a JSON value, by the names of the fields."""
        return {**asdict(self), "candidates": list(self.candidates)}


def pool_contrast(
    pool: str,
    candidates: Sequence[str],
    reports: Sequence[ReportContrast],
    site: Sequence[str],
    patient: Sequence[str],
    *,
    baseline: str | None = None,
    baseline_counts: Sequence[MatchCounts] | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> PoolContrast:
    """Return the contrast of a pool whose candidates each report holds; site and patient by report.

    The baseline is a candidate of the pool, or any extractor whose counts by report are given; by
    default it is the best candidate. The interval resamples patients of all sites together; which
    candidate is best stays as it is in all draws. ValueError for a baseline without counts.
    """
    counts = {name: _array([report.counts[name] for report in reports]) for name in candidates}
    oracle = _array([report.oracle_counts for report in reports])
    f1 = {name: _f1(array) for name, array in counts.items()}
    known = {name: value for name, value in f1.items() if value is not None}
    best = max(known, key=known.__getitem__, default=None)
    baseline = best if baseline is None else baseline
    if baseline_counts is not None:
        baseline_f1 = _f1(_array(baseline_counts))
    elif baseline is None:
        baseline_f1 = None
    elif baseline in f1:
        baseline_f1 = f1[baseline]
    else:
        raise ValueError(f"the baseline {baseline!r} is not in the pool and has no counts")
    oracle_f1 = _f1(oracle)
    usable = sum(report.usable for report in reports)
    identical = sum(report.identical for report in reports)
    return PoolContrast(
        pool=pool,
        candidates=tuple(candidates),
        reports=len(reports),
        patients=len(set(patient)),
        f1=f1,
        best=best,
        baseline=baseline,
        baseline_f1=baseline_f1,
        oracle_f1=oracle_f1,
        headroom=None if oracle_f1 is None or baseline_f1 is None else oracle_f1 - baseline_f1,
        usable=usable,
        coverage=usable / len(reports) if reports else None,
        identical=identical,
        identical_share=identical / len(reports) if reports else None,
        over_best=Effect(None, None, None, "no candidate has an F1")
        if best is None
        else paired_cluster_bootstrap(
            oracle[None],
            counts[best][None],
            np.array(site),
            np.array(patient),
            statistic="global",
            draws=draws,
            seed=seed,
        ),
    )


def _array(counts: Sequence[MatchCounts]) -> Integers:
    """Return (reports, 3): tp, fp, fn of findings."""
    return np.array([(c.tp, c.fp, c.fn) for c in counts], dtype=np.int64).reshape(-1, 3)


def _f1(counts: Integers) -> float | None:
    return micro_f1(*(int(total) for total in counts.sum(axis=0)))
