"""The projection audit: what became of each teacher's outputs (the shape of the paper's Table 5).

Pure counts and score margins: nothing here names a report.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from fedpref.preference.pairs import Pair
from fedpref.task import Projection


@dataclass(frozen=True)
class TeacherAudit:
    """One teacher's outputs in one split.

    `strict`: the whole output is one valid object. `eligible`: it projects. `discarded`: it does
    not. `chosen` and `rejected`: its part in the retained pairs. `failures`: why, and how often.
    """

    teacher: str
    split: str
    outputs: int = 0
    strict: int = 0
    eligible: int = 0
    discarded: int = 0
    chosen: int = 0
    rejected: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "TeacherAudit") -> "TeacherAudit":
        if (self.teacher, self.split) != (other.teacher, other.split):
            raise ValueError("only the same teacher's same split adds up")
        return TeacherAudit(
            self.teacher,
            self.split,
            self.outputs + other.outputs,
            self.strict + other.strict,
            self.eligible + other.eligible,
            self.discarded + other.discarded,
            self.chosen + other.chosen,
            self.rejected + other.rejected,
            dict(Counter(self.failures) + Counter(other.failures)),
        )


@dataclass(frozen=True)
class SplitAudit:
    """The pairs of one split: how many reports, the margin of every retained pair."""

    split: str
    reports: int = 0
    annotated: int = 0
    margins: tuple[float, ...] = ()

    @property
    def pairs(self) -> int:
        """Return the number of retained pairs."""
        return len(self.margins)

    @property
    def margin_mean(self) -> float | None:
        """Return the mean margin of composite scores, None without pairs."""
        return fmean(self.margins) if self.margins else None

    @property
    def margin_median(self) -> float | None:
        """Return the median margin, None without pairs."""
        return median(self.margins) if self.margins else None


@dataclass(frozen=True)
class Audit:
    """The audit of one site or of several; rows stand split by split in the teachers' order."""

    teachers: tuple[TeacherAudit, ...]
    splits: tuple[SplitAudit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as a JSON value."""
        return {
            "teachers": [{**vars(row), "failures": dict(row.failures)} for row in self.teachers],
            "splits": [
                {
                    "split": row.split,
                    "reports": row.reports,
                    "annotated": row.annotated,
                    "pairs": row.pairs,
                    "margin_mean": row.margin_mean,
                    "margin_median": row.margin_median,
                }
                for row in self.splits
            ],
        }


def audit_split(
    split: str,
    teachers: Sequence[str],
    projections: Sequence[Mapping[str, Projection]],
    pairs: Iterable[Pair],
    *,
    annotated: int,
) -> Audit:
    """Return the audit of one split from each report's projections and the retained pairs."""
    retained = list(pairs)
    chosen = Counter(pair.chosen_teacher for pair in retained)
    rejected = Counter(pair.rejected_teacher for pair in retained)
    rows = []
    for teacher in teachers:
        outputs = [by_teacher[teacher] for by_teacher in projections]
        eligible = sum(output.eligible for output in outputs)
        rows.append(
            TeacherAudit(
                teacher,
                split,
                outputs=len(outputs),
                strict=sum(output.strict for output in outputs),
                eligible=eligible,
                discarded=len(outputs) - eligible,
                chosen=chosen[teacher],
                rejected=rejected[teacher],
                failures=dict(Counter(o.failure for o in outputs if o.failure is not None)),
            )
        )
    margins = tuple(pair.margin for pair in retained)
    return Audit(tuple(rows), (SplitAudit(split, len(projections), annotated, margins),))


def merge_audits(audits: Iterable[Audit]) -> Audit:
    """Return the audit of several sites, or splits, together."""
    teachers: dict[tuple[str, str], TeacherAudit] = {}
    splits: dict[str, SplitAudit] = {}
    for audit in audits:
        for row in audit.teachers:
            key = (row.split, row.teacher)
            teachers[key] = teachers[key] + row if key in teachers else row
        for part in audit.splits:
            old = splits.get(part.split, SplitAudit(part.split))
            splits[part.split] = SplitAudit(
                part.split,
                old.reports + part.reports,
                old.annotated + part.annotated,
                old.margins + part.margins,
            )
    order = list(splits)
    rows = sorted(teachers.values(), key=lambda row: order.index(row.split))
    return Audit(tuple(rows), tuple(splits.values()))
