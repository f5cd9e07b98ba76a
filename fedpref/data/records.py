"""The two records of a site: reports and annotations, as typed values and as JSON rows."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedpref.task import ONTOLOGY, Ignore, Ontology, Structure

SPLITS: Final = ("train", "dev", "test", "diagnostic")

_REPORT_KEYS: Final = ("report_id", "patient_id", "split", "text", "home_site")
_ANNOTATION_KEYS: Final = ("report_id", "diseases", "findings", "ignore")
_IGNORE_KEYS: Final = ("diseases", "locations_of")
_FINDING_KEYS: Final = ("disease", "location")


@dataclass(frozen=True)
class Report:
    """One report as it is to be read. `repr` shows no text and no patient."""

    report_id: str
    patient_id: str
    split: str
    text: str
    home_site: str | None = None

    def __repr__(self) -> str:
        return f"Report(report_id={self.report_id!r}, split={self.split!r})"

    def to_row(self) -> dict[str, Any]:
        """Return the row of `reports.jsonl`."""
        row = {key: getattr(self, key) for key in _REPORT_KEYS}
        return {key: value for key, value in row.items() if value is not None}


@dataclass(frozen=True)
class Annotation:
    """What the site says a report contains, and what it leaves undecided."""

    report_id: str
    structure: Structure
    ignore: Ignore = Ignore()  # noqa: RUF009  (frozen)

    def __repr__(self) -> str:
        return f"Annotation(report_id={self.report_id!r})"

    def to_row(self) -> dict[str, Any]:
        """Return the row of `annotations.jsonl`."""
        row: dict[str, Any] = {"report_id": self.report_id, **self.structure.to_dict()}
        if self.ignore:
            order = self.structure.ontology.disease_rank
            row["ignore"] = {
                key: sorted(getattr(self.ignore, key), key=lambda name: order[name])
                for key in _IGNORE_KEYS
                if getattr(self.ignore, key)
            }
        return row


def parse_report(row: Mapping[str, Any]) -> Report:
    """Return the report of a row; ValueError says what is wrong without quoting the text."""
    _known(row, _REPORT_KEYS, required=_REPORT_KEYS[:4])
    for key in _REPORT_KEYS:
        if key in row and not isinstance(row[key], str):
            raise ValueError(f"{key} is a {type(row[key]).__name__}, not a string")
        if not _is_text(row.get(key, "")):
            raise ValueError(f"{key} holds a NUL or half a character (a lone surrogate)")
    for key in ("report_id", "patient_id"):
        if not row[key].strip():
            raise ValueError(f"{key} is empty")
    if row["split"] not in SPLITS:
        # Not quoted: where columns were swapped, this is the report.
        raise ValueError(f"split is none of {', '.join(SPLITS)}")
    if not any(character.isalnum() for character in row["text"]):
        raise ValueError("the report is empty: a text without a word would train as 'no finding'")
    return Report(**row)


def parse_annotation(row: Mapping[str, Any], ontology: Ontology = ONTOLOGY) -> Annotation:
    """Return the annotation of a row; ValueError names what is wrong, such as an unknown name."""
    _known(row, _ANNOTATION_KEYS, required=_ANNOTATION_KEYS[:3])
    if not isinstance(row["report_id"], str) or not row["report_id"].strip():
        raise ValueError("report_id is not a non-empty string")
    ignore = row.get("ignore", {})
    if not isinstance(ignore, dict):
        raise ValueError("ignore is not an object")
    _known(ignore, _IGNORE_KEYS, where="ignore has an ")
    masks = {key: _names(ignore.get(key, []), f"ignore.{key}", ontology) for key in ignore}
    _names(row["diseases"], "diseases", ontology)
    if not isinstance(row["findings"], list):
        raise ValueError("findings is not a list")
    for finding in row["findings"]:
        if not isinstance(finding, dict):
            raise ValueError("a finding is not an object with disease and location")
        _known(finding, _FINDING_KEYS, required=_FINDING_KEYS, where="a finding has an ")
        _name(finding["disease"], "disease", ontology.diseases)
        _name(finding["location"], "location", ontology.locations)
    structure = Structure.from_dict(row, ontology)
    contradiction = set(structure.diseases) & set(masks.get("diseases", ()))
    if contradiction:
        raise ValueError(f"{sorted(contradiction)} stand both in diseases and in ignore.diseases")
    return Annotation(row["report_id"], structure, Ignore(**masks))


def _is_text(value: str) -> bool:
    """Return whether a file, a tokenizer and a log can hold the string; JSON can say more."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _names(value: Any, key: str, ontology: Ontology) -> frozenset[str]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    for name in value:
        _name(name, f"name in {key}", ontology.diseases)
    return frozenset(value)


def _name(name: Any, what: str, known: tuple[str, ...]) -> None:
    if not isinstance(name, str):
        raise ValueError(f"a {what} is a {type(name).__name__}, not a string")
    if name not in known:
        raise ValueError(f"unknown {what}: {name[:60]!r}; {nearest(name.lower(), known)}")


def nearest(key: str, known: Sequence[str]) -> str:
    """Return "did you mean …?" with the known key most like `key`, or else all known keys."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def _known(
    row: Mapping[str, Any],
    keys: tuple[str, ...],
    *,
    required: tuple[str, ...] = (),
    where: str = "",
) -> None:
    for key in row:
        if key not in keys:
            raise ValueError(f"{where}unknown key {key[:60]!r}; {nearest(key, keys)}")
    missing = [key for key in required if key not in row]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
