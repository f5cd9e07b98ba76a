"""Labelling habits: how an answer differs from the task's rules although the report was read well.

The tiny base model is pre-trained on answers under many habits, so that it can read a report but
has not been told which convention the sites annotate by. Above all it names whole lungs where the
sites name zones. That is what federated training teaches.
"""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from fedpref.demo.cases import Place
from fedpref.demo.generate import Mention, SyntheticReport
from fedpref.task import ONTOLOGY, Structure


@dataclass(frozen=True)
class Habits:
    """Each habit is off in an exact answer."""

    drop_hedged: bool = False
    drop_unchanged: bool = False
    keep_resolved: bool = False
    keep_denied: bool = False
    keep_historical: bool = False
    lung_only: bool = False
    drop_place: bool = False
    one_side: bool = False


EXACT: Final = Habits()
EXACT_RATE: Final = 0.0
# How often an answer that is not exact has each habit.
HABIT_RATES: Final = {
    "drop_hedged": 0.30,
    "drop_unchanged": 0.50,
    "keep_resolved": 0.20,
    "keep_denied": 0.10,
    "keep_historical": 0.20,
    "lung_only": 1.0,
    "drop_place": 0.10,
    "one_side": 0.10,
}


def sample_habits(rng: np.random.Generator) -> Habits:
    """Return the habits of one answer: none with `EXACT_RATE`, else each by its own rate."""
    if rng.random() < EXACT_RATE:
        return EXACT
    return Habits(**{f.name: bool(rng.random() < HABIT_RATES[f.name]) for f in fields(Habits)})


def answer(report: SyntheticReport, habits: Habits) -> Structure:
    """Return the structure that somebody with these habits would write for the report."""
    kept = [mention for mention in report.mentions if _keeps(habits, mention)]
    places = [(mention.disease, _place(habits, mention.place)) for mention in kept]
    return Structure(
        [mention.disease for mention in kept],
        [(disease, where) for disease, place in places for where in place.locations],
        ONTOLOGY,
    )


def _keeps(habits: Habits, mention: Mention) -> bool:
    match mention.status:
        case "hedged":
            return not habits.drop_hedged
        case "unchanged":
            return not habits.drop_unchanged
        case "resolved":
            return habits.keep_resolved
        case "denied":
            return habits.keep_denied
        case "historical":
            return habits.keep_historical
        case _:
            return True


def _place(habits: Habits, place: Place) -> Place:
    if habits.drop_place:
        return Place()
    side, zone = place.side, place.zone
    if side == "both" and habits.one_side:
        side = "right"
    if side and habits.lung_only:
        zone = "lung"
    return Place(side, zone)
