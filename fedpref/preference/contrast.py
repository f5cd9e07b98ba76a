"""What a report's candidates offer together: a best one, a pair, or the same thing (DESIGN 1.11).

Pure. Scores of whole pools are made from these in `fedpref.evaluation.headroom`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedpref.preference.pairs import DIGITS, MIN_MARGIN, select_pair
from fedpref.task import Ignore, MatchCounts, Projection, Structure, match_counts, score


@dataclass(frozen=True)
class ReportContrast:
    """One annotated report's candidates.

    `counts` are each candidate's against the annotation, an answer without a valid object counting
    as the empty structure. `oracle` names the eligible candidate of the highest composite score,
    None if no candidate is eligible; `oracle_counts` are its counts. `usable`: the candidates form
    a pair. `identical`: all are eligible and project to one and the same structure.
    """

    counts: Mapping[str, MatchCounts]
    oracle: str | None
    oracle_counts: MatchCounts
    usable: bool
    identical: bool


def report_contrast(
    candidates: Mapping[str, Projection],
    target: Structure,
    *,
    ignore: Ignore = Ignore(),  # noqa: B008  (frozen)
    min_margin: float = MIN_MARGIN,
) -> ReportContrast:
    """Return what the candidates of one report offer; ValueError without any candidate.

    Scores are compared as for pairs, rounded, and ties go to the earliest candidate. What the
    annotation ignores leaves counts and scores; whether parsed sets are identical is asked of the
    whole structures, as it is for pairs.
    """
    if not candidates:
        raise ValueError("there is no candidate")
    eligible = {name: c.structure for name, c in candidates.items() if c.eligible}
    composite = {
        name: round(score(structure, target, ignore).composite, DIGITS)
        for name, structure in eligible.items()
    }
    oracle = max(composite, key=composite.__getitem__, default=None)
    best = Structure(ontology=target.ontology) if oracle is None else eligible[oracle]
    return ReportContrast(
        counts={name: match_counts(c.structure, target, ignore) for name, c in candidates.items()},
        oracle=oracle,
        oracle_counts=match_counts(best, target, ignore),
        usable=select_pair(candidates, target, ignore=ignore, min_margin=min_margin) is not None,
        identical=len(eligible) == len(candidates) and len(set(eligible.values())) == 1,
    )
