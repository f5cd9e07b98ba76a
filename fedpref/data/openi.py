"""The Open-i chest X-ray collection (Indiana University) as reports and annotations.

Reads a user's own copy of `indiana_reports.csv`; its text is licensed CC BY-NC-ND and must stay out
of the project. The codes in the column `MeSH` are the annotation (see `openi_codes`); what neither
codes nor text decide is masked (docs/data.md).
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedpref.data.openi_codes import (
    ATELECTASIS,
    CONSOLIDATION,
    EDEMA,
    EFFUSION,
    HEART_FAILURE,
    NO_INDEXING,
    NORMAL,
    OPACITY,
    PNEUMONIA,
    PNEUMOTHORAX,
    SILHOUETTE,
    UNSATISFACTORY,
    CodedReport,
    decode,
    ignore_of,
    parse_codes,
)
from fedpref.data.records import Annotation, Report
from fedpref.data.text import duplicate_key, normalise_report
from fedpref.errors import DataError
from fedpref.task import ONTOLOGY

_COLUMNS: Final = ("uid", "MeSH", "findings", "impression")

# An uncoded disease that a sentence names without a word of denial is masked, not negative: coders
# left out most hedged diagnoses.
_MENTIONS: Final = {
    OPACITY: r"\bopacit|\binfiltrat|air ?space disease",
    EFFUSION: r"(?<!pericardial )\beffusion",
    ATELECTASIS: r"atelecta",
    SILHOUETTE: r"cardiomegaly|enlarged heart|heart is enlarged",
    EDEMA: r"edema",
    PNEUMOTHORAX: r"pneumothora",
    CONSOLIDATION: r"\bconsolidation",
    HEART_FAILURE: r"heart failure|\bchf\b|(?:fluid|volume) overload",
    PNEUMONIA: r"\bpneumonia",
}
# Crude: "no change in the effusion" counts as denied, and then stays a negative as coded. The words
# were chosen against this collection, whose known counts they reproduce; on other text they would
# have to be chosen anew.
_DENIAL: Final = re.compile(
    r"\b(?:no|not|nor|neither|none|without|negative|absen(?:t|ce)|free|clear|normal"
    r"|resol(?:ved|ving|ution)|previous|exclusion)\b"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\.(?=[A-Z])|\n")
_MENTION: Final = {disease: re.compile(pattern) for disease, pattern in _MENTIONS.items()}


@dataclass(frozen=True)
class OpenI:
    """The usable reports in file order, why others were left out, and how many were masked."""

    reports: tuple[Report, ...]
    annotations: tuple[Annotation, ...]
    excluded: Mapping[str, int]
    normal: int
    only_masked: int  # no disease coded, but at least one that the codes leave undecided
    masked_by_code: Mapping[str, int]
    masked_by_text: Mapping[str, int]

    def counts(self) -> dict[str, object]:
        """Return the figures that docs/data.md explains; no text, no ids."""
        structures = [annotation.structure for annotation in self.annotations]
        positive = Counter(d for s in structures for d in s.diseases)
        placed = Counter(d for s in structures for d in {disease for disease, _ in s.findings})
        placed_at = [{place for _, place in s.findings} for s in structures]
        locations = Counter(place for places in placed_at for place in places)
        ontology = structures[0].ontology if structures else ONTOLOGY
        subregions = set(ontology.parents)
        lungs = subregions | set(ontology.parents.values())
        return {
            "usable": len(self.reports),
            "excluded": dict(self.excluded),
            "normal": self.normal,
            "with_disease": sum(bool(s.diseases) for s in structures),
            "with_finding": sum(bool(places) for places in placed_at),
            "with_lung_finding": sum(bool(places & lungs) for places in placed_at),
            "with_subregion_finding": sum(bool(places & subregions) for places in placed_at),
            "only_masked": self.only_masked,
            "distinct_texts": len({duplicate_key(report.text) for report in self.reports}),
            "distinct_findings": len({f for s in structures for f in s.findings}),
            "diseases": {
                disease: {
                    "positive": positive[disease],
                    "with_location": placed[disease],
                    "masked_by_code": self.masked_by_code.get(disease, 0),
                    "masked_by_text": self.masked_by_text.get(disease, 0),
                }
                for disease in ontology.diseases
            },
            "locations": {place: locations[place] for place in ontology.locations},
        }


def read_openi(path: Path) -> OpenI:
    """Return the usable reports of a copy of `indiana_reports.csv`, all in split "train".

    Left out are reports that nobody coded, that only have image quality coded, and those without
    any text. Raises DataError naming file and row if the table has another shape.
    """
    reports, annotations = [], []
    excluded = dict.fromkeys(("no_indexing", "technical_only", "no_text"), 0)
    by_code: Counter[str] = Counter()
    by_text: Counter[str] = Counter()
    normal = only_masked = 0
    for row in _rows(path):
        codes = parse_codes(row["MeSH"])
        headings = {heading for heading, _ in codes}
        # Each section is cleaned by itself: the blank between them is no part of either.
        text = normalise_report(f"{row['findings']}\n\n{row['impression']}")
        if NO_INDEXING in headings or not headings:
            excluded["no_indexing"] += 1
        elif headings == {UNSATISFACTORY}:
            excluded["technical_only"] += 1
        elif not duplicate_key(text):
            excluded["no_text"] += 1
        else:
            coded = decode(codes)
            mentioned = mask_by_text(text, coded)
            normal += headings == {NORMAL}
            only_masked += bool(coded.masked) and not coded.structure.diseases
            by_code.update(coded.masked)
            by_text.update(mentioned)
            uid = f"openi-{row['uid'].strip()}"
            # The collection names no patients, and has as many as reports.
            reports.append(Report(uid, uid, "train", text))
            annotations.append(Annotation(uid, coded.structure, ignore_of(coded, mentioned)))
    return OpenI(
        tuple(reports), tuple(annotations), excluded, normal, only_masked, by_code, by_text
    )


def mask_by_text(text: str, coded: CodedReport) -> frozenset[str]:
    """Return the diseases that are neither coded nor masked, but named without a denial."""
    sentences = [sentence.lower() for sentence in _SENTENCE_END.split(text)]
    open_sentences = [s for s in sentences if not _DENIAL.search(s)]
    decided = coded.masked | set(coded.structure.diseases)
    return frozenset(
        disease
        for disease, mention in _MENTION.items()
        if disease not in decided and any(mention.search(s) for s in open_sentences)
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"the table lacks the columns {', '.join(missing)}",
                    file=path,
                    fix="use the table indiana_reports.csv of the Open-i collection",
                )
            seen: dict[str, int] = {}
            for row in reader:
                line = reader.line_num
                if None in row or any(row[column] is None for column in _COLUMNS):
                    raise DataError("the row has too many or too few cells", file=path, line=line)
                if row["uid"] in seen:
                    raise DataError(
                        f"the uid repeats that of line {seen[row['uid']]}", file=path, line=line
                    )
                seen[row["uid"]] = line
                yield row
    except OSError as error:
        raise DataError(
            f"the table cannot be read ({error.strerror})",
            file=path,
            fix="name your copy of indiana_reports.csv; FedPref cannot ship it (its licence)",
        ) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"the table is malformed ({type(error).__name__})", file=path) from None
