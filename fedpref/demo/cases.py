"""What a synthetic report will say: diseases and where they are, before any wording."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedpref.demo.phrases import (
    ATELECTASIS,
    CONSOLIDATION,
    EDEMA,
    EFFUSION,
    FAILURE,
    HEART,
    MIDLINE,
    OPACITY,
    PNEUMONIA,
    PNEUMOTHORAX,
)
from fedpref.task import ONTOLOGY, Structure


@dataclass(frozen=True)
class Place:
    """A place in the chest: side "right", "left", "both" or "", and zone.

    The zone is "lung", a zone's name without its side, a midline location's whole name, or ""
    where the report names no place.
    """

    side: str = ""
    zone: str = ""

    @property
    def locations(self) -> tuple[str, ...]:
        """Return the ontology's locations, without parents."""
        if not self.zone:
            return ()
        if not self.side:
            return (self.zone,)
        sides = ("right", "left") if self.side == "both" else (self.side,)
        return tuple(f"{side} {self.zone}" for side in sides)


@dataclass(frozen=True)
class CaseFinding:
    """A disease that is there. `proposed` says it explains the finding before it, at its place."""

    disease: str
    place: Place
    proposed: bool = False


Case = tuple[CaseFinding, ...]

# Relative frequency of each disease and of the zones it takes ("" = no place is named).
_FREQUENCY: Final = {
    OPACITY: 22, EFFUSION: 19, ATELECTASIS: 18, HEART: 12, EDEMA: 9, PNEUMOTHORAX: 6,
    CONSOLIDATION: 8, FAILURE: 5, PNEUMONIA: 6,
}  # fmt: skip
_ZONES: Final[dict[str, dict[str, float]]] = {
    OPACITY: {
        "lower lung zone": 34, "upper lung zone": 16, "mid lung zone": 14, "apical zone": 6,
        "hilar structures": 8, "lung": 12, "costophrenic angle": 3, "mediastinum": 2,
        "upper mediastinum": 3, "trachea": 2,
    },
    EFFUSION: {"lung": 62, "costophrenic angle": 28, "lower lung zone": 4, "": 6},
    ATELECTASIS: {
        "lower lung zone": 60, "mid lung zone": 12, "upper lung zone": 8, "lung": 8, "": 12,
    },
    HEART: {"cardiac silhouette": 1},
    EDEMA: {"lung": 40, "hilar structures": 25, "lower lung zone": 10, "": 25},
    PNEUMOTHORAX: {"apical zone": 45, "lung": 50, "": 5},
    CONSOLIDATION: {
        "lower lung zone": 45, "upper lung zone": 22, "mid lung zone": 18, "hilar structures": 5,
        "lung": 10,
    },
    FAILURE: {"": 1},
    PNEUMONIA: {"lower lung zone": 40, "mid lung zone": 15, "upper lung zone": 15, "": 30},
}  # fmt: skip
_COUNT: Final = (0.20, 0.30, 0.30, 0.20)  # of diseases in a case: 0, 1, 2, 3
_PROPOSED: Final = {OPACITY: (PNEUMONIA, ATELECTASIS), CONSOLIDATION: (PNEUMONIA,)}
_PROPOSED_RATE: Final = 0.30


def draw(rng: np.random.Generator, weights: dict[str, float]) -> str:
    """Return one key, with probability in proportion to its weight."""
    names = list(weights)
    share = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=share / share.sum()))]


def sample_place(rng: np.random.Generator, disease: str) -> Place:
    """Return a place that suits the disease."""
    zone = draw(rng, _ZONES[disease])
    if not zone or zone in MIDLINE or zone == "cardiac silhouette":
        return Place("", zone)
    both = 0.7 if disease == EDEMA else 0.05 if disease == PNEUMOTHORAX else 0.25
    one = (1 - both) / 2
    return Place(draw(rng, {"right": one, "left": one, "both": both}), zone)


def sample_case(rng: np.random.Generator) -> Case:
    """Return a random case of zero to four diseases, each at most once."""
    count = int(rng.choice(len(_COUNT), p=_COUNT))
    left = dict(_FREQUENCY)
    case: list[CaseFinding] = []
    for _ in range(count):
        disease = draw(rng, left)  # type: ignore[arg-type]
        del left[disease]
        place = sample_place(rng, disease)
        case.append(CaseFinding(disease, place))
        causes = [cause for cause in _PROPOSED.get(disease, ()) if cause in left]
        if causes and place.side and rng.random() < _PROPOSED_RATE:
            cause = causes[int(rng.integers(len(causes)))]
            del left[cause]
            case.append(CaseFinding(cause, place, proposed=True))
    return tuple(case)


def annotation(case: Iterable[CaseFinding]) -> Structure:
    """Return the exact annotation of a case: canonical, parents included."""
    items = list(case)
    return Structure(
        [item.disease for item in items],
        [(item.disease, where) for item in items for where in item.place.locations],
        ONTOLOGY,
    )
