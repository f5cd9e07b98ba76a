"""How well a structure matches a target (DESIGN 1.3). The only place where sets are compared."""

from dataclasses import dataclass
from typing import Final

from fedpref.task.structure import Ignore, Structure

LOCATION_DISEASE_WEIGHT: Final = 0.70
DISEASE_WEIGHT: Final = 0.25
VALIDITY_WEIGHT: Final = 0.05


@dataclass(frozen=True)
class MatchCounts:
    """True positives, false positives, false negatives: of findings, then of diseases."""

    tp: int
    fp: int
    fn: int
    disease_tp: int
    disease_fp: int
    disease_fn: int


@dataclass(frozen=True)
class Score:
    """The two F1 values in [0, 1] and their weighted sum with the validity term."""

    location_disease_f1: float
    disease_f1: float
    composite: float


def match_counts(candidate: Structure, target: Structure, ignore: Ignore = Ignore()) -> MatchCounts:  # noqa: B008
    """Return how the candidate's sets match the target's after what is ignored has left both."""
    findings, target_findings = (_findings(s, ignore) for s in (candidate, target))
    diseases, target_diseases = (set(s.diseases) - ignore.diseases for s in (candidate, target))
    return MatchCounts(
        tp=len(findings & target_findings),
        fp=len(findings - target_findings),
        fn=len(target_findings - findings),
        disease_tp=len(diseases & target_diseases),
        disease_fp=len(diseases - target_diseases),
        disease_fn=len(target_diseases - diseases),
    )


def score(candidate: Structure, target: Structure, ignore: Ignore = Ignore()) -> Score:  # noqa: B008
    """Return `0.70·F1(findings) + 0.25·F1(diseases) + 0.05`, with its two F1 values.

    A `Structure` is valid by construction, so the validity term is always earned here.
    """
    counts = match_counts(candidate, target, ignore)
    location_disease = _report_f1(counts.tp, counts.fp, counts.fn)
    disease = _report_f1(counts.disease_tp, counts.disease_fp, counts.disease_fn)
    composite = (
        LOCATION_DISEASE_WEIGHT * location_disease + DISEASE_WEIGHT * disease + VALIDITY_WEIGHT
    )
    return Score(location_disease, disease, composite)


def _findings(structure: Structure, ignore: Ignore) -> set[tuple[str, str]]:
    left_out = ignore.diseases | ignore.locations_of
    return {finding for finding in structure.findings if finding[0] not in left_out}


def _report_f1(tp: int, fp: int, fn: int) -> float:
    """Return the F1 of one report; with an empty target, 1/(1+m) for m predicted positives."""
    if tp + fn == 0:
        return 1 / (1 + fp)
    return 2 * tp / (2 * tp + fp + fn)
