"""From a report's candidates to its one preference pair (DESIGN 1.4). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fedpref.task import Ignore, Projection, Structure, score

MIN_MARGIN: Final = 0.10
DIGITS: Final = 9  # scores are compared after rounding, so that equal fractions tie


@dataclass(frozen=True)
class Pair:
    """The best and the worst eligible candidate of one report; `margin` is of composite scores."""

    chosen_teacher: str
    rejected_teacher: str
    chosen: Structure
    rejected: Structure
    margin: float


def select_pair(
    candidates: Mapping[str, Projection],
    target: Structure,
    *,
    ignore: Ignore = Ignore(),  # noqa: B008  (frozen)
    min_margin: float = MIN_MARGIN,
) -> Pair | None:
    """Return the pair of a report, or None.

    Among eligible candidates the highest and the lowest composite score, each rounded to nine
    digits, are taken; ties for either go to the earliest teacher in the mapping's order. There is
    no pair if their structures are equal, the margin is below `min_margin`, the chosen one has no
    strictly higher loc+dis F1, or a disease that the annotation ignores stands in either of them.
    """
    eligible = {teacher: c.structure for teacher, c in candidates.items() if c.eligible}
    if len(eligible) < 2:
        return None
    scores = {teacher: score(s, target, ignore) for teacher, s in eligible.items()}
    composite = {teacher: round(s.composite, DIGITS) for teacher, s in scores.items()}
    # max and min return the first of equals.
    best = max(composite, key=composite.__getitem__)
    worst = min(composite, key=composite.__getitem__)
    chosen, rejected = eligible[best], eligible[worst]
    margin = round(composite[best] - composite[worst], DIGITS)
    better = round(scores[best].location_disease_f1, DIGITS) > round(
        scores[worst].location_disease_f1, DIGITS
    )
    undecided = ignore.diseases & {*chosen.diseases, *rejected.diseases}
    if chosen == rejected or margin < min_margin or not better or undecided:
        return None
    return Pair(best, worst, chosen, rejected, margin)
