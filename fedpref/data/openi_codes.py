"""From the codes of an Open-i report to a structure and what the codes leave undecided.

The tables are closed: a heading or qualifier that stands in none of them says nothing. Each
(report, disease) is positive, masked, or otherwise negative; positive beats masked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedpref.task import Ignore, Structure

NORMAL: Final = "normal"
NO_INDEXING: Final = "No Indexing"
UNSATISFACTORY: Final = "Technical Quality of Image Unsatisfactory"

OPACITY: Final = "lung opacity"
EFFUSION: Final = "pleural effusion"
ATELECTASIS: Final = "atelectasis"
SILHOUETTE: Final = "enlarged cardiac silhouette"
EDEMA: Final = "pulmonary edema/hazy opacity"
PNEUMOTHORAX: Final = "pneumothorax"
CONSOLIDATION: Final = "consolidation"
HEART_FAILURE: Final = "fluid overload/heart failure"
PNEUMONIA: Final = "pneumonia"

# An opacity code that also names one of these is soft tissue, a fat pad, hardware or elsewhere.
_IN_LUNG: Final = frozenset({"lung", "pulmonary alveoli"})
_NOT_LUNG: Final = frozenset(
    {
        "thorax",
        "ribs",
        "sternum",
        "clavicle",
        "breast",
        "mediastinum",
        "heart",
        "paratracheal",
        "supracardiac",
        "thoracic vertebrae",
        "adipose tissue",
        "pleura",
        "pleural sinus",
        "mitral valve",
        "cardiophrenic angle",
    }
)
_UNSURE_SIZE: Final = frozenset({"borderline", "prominent"})
_LARGE: Final = frozenset({"enlarged", "prominent"})


@dataclass(frozen=True)
class Rule:
    """What one heading means if its qualifiers hold one of `any_of` (if given), none of `none_of`.

    `finds` is the disease it makes positive, `masks` the diseases it makes ambiguous.
    """

    heading: str
    finds: str | None = None
    masks: tuple[str, ...] = ()
    any_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()

    def holds(self, qualifiers: frozenset[str]) -> bool:
        """Return whether the guard lets these qualifiers pass."""
        return (not self.any_of or bool(self.any_of & qualifiers)) and not (
            self.none_of & qualifiers
        )


# The first rule of a heading whose guard holds decides; the reasons stand in docs/data.md.
RULES: Final = (
    Rule("Opacity", finds=OPACITY, any_of=_IN_LUNG, none_of=_NOT_LUNG),
    Rule("Opacity", masks=(OPACITY,)),
    Rule("Density", masks=(OPACITY,)),
    Rule("Infiltrate", finds=OPACITY),
    Rule("Airspace Disease", finds=OPACITY),
    Rule("Pleural Effusion", finds=EFFUSION, none_of=frozenset({"borderline"})),
    Rule("Pleural Effusion", masks=(EFFUSION,)),
    Rule("Hemothorax", masks=(EFFUSION,)),
    Rule("Costophrenic Angle", masks=(EFFUSION,), any_of=frozenset({"blunted"})),
    Rule("Sulcus", masks=(EFFUSION,), any_of=frozenset({"blunted"})),
    Rule("Pleura", masks=(EFFUSION,), any_of=frozenset({"blunted"})),
    Rule("Pulmonary Atelectasis", finds=ATELECTASIS),
    Rule("Volume Loss", masks=(ATELECTASIS,)),
    Rule("Cardiomegaly", finds=SILHOUETTE, none_of=frozenset({"borderline"})),
    Rule("Cardiomegaly", masks=(SILHOUETTE,)),
    Rule(
        "Cardiac Shadow",
        finds=SILHOUETTE,
        any_of=frozenset({"enlarged"}),
        none_of=frozenset({"borderline"}),
    ),
    Rule("Cardiac Shadow", masks=(SILHOUETTE,), any_of=_UNSURE_SIZE),
    Rule("Heart Atria", masks=(SILHOUETTE,), any_of=_LARGE),
    Rule("Heart Ventricles", masks=(SILHOUETTE,), any_of=_LARGE),
    Rule("Pulmonary Edema", finds=EDEMA),
    Rule("Pulmonary Congestion", masks=(EDEMA, HEART_FAILURE)),
    Rule("Pneumothorax", finds=PNEUMOTHORAX),
    Rule("Hydropneumothorax", masks=(PNEUMOTHORAX, EFFUSION)),
    Rule("Hemopneumothorax", masks=(PNEUMOTHORAX, EFFUSION)),
    Rule("Consolidation", finds=CONSOLIDATION),
    Rule("Heart Failure", finds=HEART_FAILURE),
    Rule("Pneumonia", finds=PNEUMONIA),
)

# A zone names a location on each coded side; without a side there is none.
ZONES: Final = {
    "apex": "apical zone",
    "upper lobe": "upper lung zone",
    "middle lobe": "mid lung zone",
    "lower lobe": "lower lung zone",
    "base": "lower lung zone",
    "hilum": "hilar structures",
    "costophrenic angle": "costophrenic angle",
}
# Coders use lingula for the left mid zone, onto which it projects: the side is implied.
IMPLIED: Final = {"lingula": "left mid lung zone"}
# Behind the heart is the left lower zone, but only if the side is coded.
LEFT_ONLY: Final = {"retrocardiac": "left lower lung zone"}
# Wherever these are coded, they have this one place, or none.
FIXED_PLACE: Final[dict[str, tuple[str, ...]]] = {
    SILHOUETTE: ("cardiac silhouette",),
    HEART_FAILURE: (),
}

Code = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class CodedReport:
    """What the codes of one report say: its structure and the diseases the codes leave open."""

    structure: Structure
    masked: frozenset[str]

    @property
    def unplaced(self) -> frozenset[str]:
        """Return the coded diseases without any location: "not coded", not "not stated"."""
        placed = {disease for disease, _ in self.structure.findings}
        return frozenset(self.structure.diseases) - placed


def parse_codes(text: str) -> tuple[Code, ...]:
    """Return (heading, set of qualifiers) for each `Heading/qualifier/…` of a `;` list.

    Outer blanks go and runs of blanks shrink; qualifiers are compared in lower case.
    """
    codes: list[Code] = []
    for part in text.split(";"):
        heading, *qualifiers = (" ".join(piece.split()) for piece in part.split("/"))
        if heading:
            codes.append((heading, frozenset(q.lower() for q in qualifiers if q)))
    return tuple(codes)


def decode(codes: Iterable[Code]) -> CodedReport:
    """Return what the codes say by `RULES` and the location tables."""
    diseases: set[str] = set()
    findings: set[tuple[str, str]] = set()
    masked: set[str] = set()
    for heading, qualifiers in codes:
        rule = next((r for r in RULES if r.heading == heading and r.holds(qualifiers)), None)
        if rule is None:
            continue
        masked.update(rule.masks)
        if rule.finds is not None:
            diseases.add(rule.finds)
            places = FIXED_PLACE.get(rule.finds, _places(qualifiers))
            findings.update((rule.finds, place) for place in places)
    return CodedReport(Structure(diseases, findings), frozenset(masked - diseases))


def ignore_of(coded: CodedReport, text_masked: frozenset[str]) -> Ignore:
    """Return the masks of a report; a positive disease is never among the masked ones."""
    positive = frozenset(coded.structure.diseases)
    return Ignore((coded.masked | text_masked) - positive, coded.unplaced)


def _places(qualifiers: frozenset[str]) -> tuple[str, ...]:
    """Return the locations a code names: its zones on its sides, or the whole lungs."""
    sides = {"left", "right"} & qualifiers
    if "bilateral" in qualifiers:
        sides = {"left", "right"}
    places = {f"{side} {ZONES[q]}" for side in sides for q in qualifiers if q in ZONES}
    places |= {f"{side} lung" for side in sides}
    places |= {IMPLIED[q] for q in qualifiers if q in IMPLIED}
    if "left" in sides:
        places |= {LEFT_ONLY[q] for q in qualifiers if q in LEFT_ONLY}
    return tuple(places)
