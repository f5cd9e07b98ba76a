"""Counts that a site reports, and every score made of them. Pure.

Counts are all that leaves a site: they add up, so that pooling is a sum and a score is computed
once, from the sum. A score without data is None, never 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import sqrt
from statistics import pstdev
from typing import Any, Final

from fedpref.task import Ignore, Projection, Structure, match_counts

_NORMAL_975: Final = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True)
class EvaluationCounts:
    """What one evaluation of one site counts; all are whole numbers ≥ 0, and they add up.

    `tp, fp, fn` count (disease, location) findings and `disease_*` diseases, after projection and
    masks, over `reports` reports. `projected` answers held a valid object, `strict` ones were
    nothing else, `truncated` ones reached the token limit before the end of turn. `empty_targets`
    reports have an annotation without any disease and without ignored diseases;
    `empty_with_prediction` of them got at least one predicted disease. Of `pairs` held-out pairs,
    `pairs_preferred` have log π(chosen) > log π(rejected).
    """

    reports: int = 0
    tp: int = 0
    fp: int = 0
    fn: int = 0
    disease_tp: int = 0
    disease_fp: int = 0
    disease_fn: int = 0
    projected: int = 0
    strict: int = 0
    truncated: int = 0
    empty_targets: int = 0
    empty_with_prediction: int = 0
    pairs: int = 0
    pairs_preferred: int = 0

    def __add__(self, other: "EvaluationCounts") -> "EvaluationCounts":
        """Return the counts of both together."""
        return EvaluationCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def to_dict(self) -> dict[str, int]:
        """Return the counts by name, in the order of the fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "EvaluationCounts":
        """Return the counts of a mapping as `to_dict` writes it.

        ValueError names what is missing, unknown, no whole number, negative, or more than the
        total it is a part of.
        """
        names = [f.name for f in fields(cls)]
        if value.keys() != set(names):
            missing = [name for name in names if name not in value]
            raise ValueError(
                f"missing {', '.join(missing)}"
                if missing
                else f"{len(value) - len(names)} unknown entries"
            )
        for name in names:
            if type(value[name]) is not int:
                raise ValueError(f"{name} is not an integer")
            if value[name] < 0:
                raise ValueError(f"{name} is negative")
        counts = cls(**{name: value[name] for name in names})
        for part, whole in _PARTS:
            if getattr(counts, part) > getattr(counts, whole):
                raise ValueError(f"{part} is larger than {whole}")
        return counts


_PARTS = (
    ("projected", "reports"),
    ("strict", "projected"),
    ("truncated", "reports"),
    ("empty_targets", "reports"),
    ("empty_with_prediction", "empty_targets"),
    ("pairs_preferred", "pairs"),
)


@dataclass(frozen=True)
class RoundMetrics:
    """The scores of one adapter over a federation's sites; None where there is no data.

    F1 values are loc+dis micro-F1 unless they say disease. `sites` holds every site that was asked
    about, in order. All but the client means and the worst site are pooled over sites.
    """

    client_mean: float | None
    worst_site: float | None
    pooled: float | None
    sites: Mapping[str, float | None]
    disease_client_mean: float | None
    disease_pooled: float | None
    projection_rate: float | None
    strict_rate: float | None
    truncation_rate: float | None
    false_positive_rate: float | None
    preference_accuracy: float | None
    total: EvaluationCounts


def report_counts(
    projection: Projection, target: Structure, ignore: Ignore, *, truncated: bool
) -> EvaluationCounts:
    """Return the counts of one report: what its answer was projected to against its annotation.

    An answer without a valid object counts as the empty structure. A report with any ignored
    disease is no empty target, because what is ignored may be present (DESIGN 1.3).
    """
    match = match_counts(projection.structure, target, ignore)
    empty = not target.diseases and not ignore.diseases
    return EvaluationCounts(
        reports=1,
        tp=match.tp,
        fp=match.fp,
        fn=match.fn,
        disease_tp=match.disease_tp,
        disease_fp=match.disease_fp,
        disease_fn=match.disease_fn,
        projected=int(projection.eligible),
        strict=int(projection.strict),
        truncated=int(truncated),
        empty_targets=int(empty),
        empty_with_prediction=int(empty and match.disease_fp > 0),
    )


def micro_f1(tp: int, fp: int, fn: int) -> float | None:
    """Return 2·tp / (2·tp + fp + fn); None if there is no positive on either side."""
    if min(tp, fp, fn) < 0:
        raise ValueError("counts are never negative")
    positives = 2 * tp + fp + fn
    return None if positives == 0 else 2 * tp / positives


def location_disease_f1(counts: EvaluationCounts) -> float | None:
    """Return the micro-F1 over (disease, location) findings, the primary score."""
    return micro_f1(counts.tp, counts.fp, counts.fn)


def disease_f1(counts: EvaluationCounts) -> float | None:
    """Return the micro-F1 over diseases."""
    return micro_f1(counts.disease_tp, counts.disease_fp, counts.disease_fn)


def projection_rate(counts: EvaluationCounts) -> float | None:
    """Return the share of reports whose answer held a valid object."""
    return _rate(counts.projected, counts.reports)


def strict_rate(counts: EvaluationCounts) -> float | None:
    """Return the share of reports whose answer was a valid object and nothing else."""
    return _rate(counts.strict, counts.reports)


def truncation_rate(counts: EvaluationCounts) -> float | None:
    """Return the share of reports whose answer was cut at the token limit."""
    return _rate(counts.truncated, counts.reports)


def false_positive_rate(counts: EvaluationCounts) -> float | None:
    """Return the share of empty-target reports with at least one predicted disease."""
    return _rate(counts.empty_with_prediction, counts.empty_targets)


def preference_accuracy(counts: EvaluationCounts) -> float | None:
    """Return the share of held-out pairs with log π(chosen) > log π(rejected)."""
    return _rate(counts.pairs_preferred, counts.pairs)


def wilson_interval(part: int, whole: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval of the share part / whole; None without data.

    Unlike a bootstrap it keeps its width at 0 of n and n of n. It takes the cases as independent,
    so that several reports of a patient make it too narrow (Wilson, JASA 22, 1927).
    """
    if not 0 <= part <= whole:
        raise ValueError(f"{part} of {whole} is no share")
    if whole == 0:
        return None
    share, square = part / whole, _NORMAL_975**2
    centre = share + square / (2 * whole)
    half = _NORMAL_975 * sqrt(share * (1 - share) / whole + square / (4 * whole**2))
    low, high = ((centre + sign * half) / (1 + square / whole) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def client_mean(values: Iterable[float | None]) -> float | None:
    """Return the unweighted mean over the sites with data; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if one of the values is missing, or if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def worst_site(values: Iterable[float | None]) -> float | None:
    """Return the minimum over the sites with data; None if there is none."""
    return min((value for value in values if value is not None), default=None)


def site_spread(values: Iterable[float | None]) -> float | None:
    """Return the standard deviation over the sites with data; None if there are fewer than two.

    Divided by their number: the sites are the whole federation, no sample of one.
    """
    known = [value for value in values if value is not None]
    return pstdev(known) if len(known) > 1 else None


def pooled(counts: Iterable[EvaluationCounts | None]) -> EvaluationCounts:
    """Return the counts of all sites with data together."""
    return sum((c for c in counts if c is not None), EvaluationCounts())


def summarise(counts: Mapping[str, EvaluationCounts | None]) -> RoundMetrics:
    """Return the scores of one adapter from the counts by site (None: the site gave no counts)."""
    f1 = {site: None if c is None else location_disease_f1(c) for site, c in counts.items()}
    disease = [None if c is None else disease_f1(c) for c in counts.values()]
    total = pooled(counts.values())
    return RoundMetrics(
        client_mean=client_mean(f1.values()),
        worst_site=worst_site(f1.values()),
        pooled=location_disease_f1(total),
        sites=f1,
        disease_client_mean=client_mean(disease),
        disease_pooled=disease_f1(total),
        projection_rate=projection_rate(total),
        strict_rate=strict_rate(total),
        truncation_rate=truncation_rate(total),
        false_positive_rate=false_positive_rate(total),
        preference_accuracy=preference_accuracy(total),
        total=total,
    )


def _rate(part: int, whole: int) -> float | None:
    return None if whole == 0 else part / whole
