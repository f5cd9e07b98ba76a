"""Candidates: what each teacher wrote about each report, kept beside the reports at the site.

`candidates/<teacher>.jsonl` holds one line per report with the completion as the teacher gave it
and the hashes of the report's text and of the teacher, so that a line is reused exactly as long as
both are unchanged. The file is only ever replaced as a whole; an interrupted run leaves fewer
lines and goes on from them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fedpref.data import Report, SiteDirectory
from fedpref.errors import DataError
from fedpref.files import read_jsonl, write_jsonl
from fedpref.hashing import digest
from fedpref.preference.teachers.base import Teacher

PAIR_SPLITS: Final = ("train", "dev")  # the splits that form pairs
_BATCH: Final = 64
_SAVE_EVERY: Final = 5.0  # seconds


@dataclass(frozen=True)
class Candidate:
    """One teacher's raw completion for one report, with what it was made from."""

    report_id: str = field(repr=False)
    teacher: str
    text: str = field(repr=False)
    report_hash: str
    teacher_hash: str


@dataclass(frozen=True)
class Generated:
    """How many candidates a teacher now has at a site, and how many of them were kept."""

    teacher: str
    total: int
    reused: int


def report_hash(text: str) -> str:
    """Return the content hash of a report's text."""
    return digest(text)


def candidates_path(site: SiteDirectory, teacher: str) -> Path:
    """Return where a teacher's candidates stand."""
    return site.candidates_dir / f"{teacher}.jsonl"


def pair_reports(site: SiteDirectory, splits: Sequence[str] = PAIR_SPLITS) -> list[Report]:
    """Return the reports of these splits, in the order of reports.jsonl."""
    return [report for report in site.reports if report.split in splits]


def read_candidates(path: Path) -> list[Candidate]:
    """Return the candidates of a file, in its order.

    Raises DataError naming file and line for a malformed line or a repeated report.
    """
    names = ("report_id", "teacher", "text", "report_hash", "teacher_hash")
    candidates: list[Candidate] = []
    seen: set[str] = set()
    for line, row in read_jsonl(path):
        if row.keys() != set(names) or not all(isinstance(row[name], str) for name in names):
            raise DataError(
                f"a candidate has the keys {', '.join(names)}, all strings",
                file=path,
                line=line,
                fix="delete the file and run `fedpref teach` again",
            )
        if row["report_id"] in seen:
            raise DataError(
                "the report has two candidates of one teacher",
                file=path,
                line=line,
                fix="delete the file and run `fedpref teach` again",
            )
        seen.add(row["report_id"])
        candidates.append(Candidate(**row))
    return candidates


def generate(
    site: SiteDirectory,
    teacher: Teacher,
    *,
    splits: Sequence[str] = PAIR_SPLITS,
    progress: Callable[[int], Any] | None = None,
) -> Generated:
    """Write a teacher's candidates for the site's reports; `progress` gets numbers of reports.

    Only what is missing, or was made from another text or another state of the teacher, is asked
    for. If the teacher fails, what it gave before is kept and its error is raised with the site.
    """
    path = candidates_path(site, teacher.name)
    reports = pair_reports(site, splits)
    hashes = {report.report_id: report_hash(report.text) for report in reports}
    old = read_candidates(path) if path.exists() else []
    done = {
        c.report_id: c
        for c in old
        if c.teacher_hash == teacher.digest and hashes.get(c.report_id) == c.report_hash
    }
    todo = [report for report in reports if report.report_id not in done]
    reused = len(done)
    if progress is not None:
        progress(reused)

    def save() -> None:
        rows = (asdict(done[r.report_id]) for r in reports if r.report_id in done)
        write_jsonl(path, rows)

    saved = time.monotonic()
    try:
        for start in range(0, len(todo), _BATCH):
            batch = todo[start : start + _BATCH]
            answers = teacher.extract([report.text for report in batch])
            for report, answer in zip(batch, answers, strict=True):
                done[report.report_id] = Candidate(
                    report.report_id,
                    teacher.name,
                    answer,
                    hashes[report.report_id],
                    teacher.digest,
                )
            if progress is not None:
                progress(len(batch))
            if time.monotonic() - saved > _SAVE_EVERY:
                save()
                saved = time.monotonic()
    except BaseException as error:
        if len(done) > reused:
            save()
        if isinstance(error, DataError) and error.site is None:
            raise DataError(error.what, why=error.why, fix=error.fix, site=site.name) from None
        raise
    if todo or len(old) != len(done) or not path.exists():
        save()
    return Generated(teacher.name, len(reports), reused)


def current_candidates(
    site: SiteDirectory, teacher: str, *, teacher_hash: str | None = None
) -> dict[str, Candidate]:
    """Return a teacher's candidates by report id, one for every train and dev report.

    Raises DataError naming teacher, site and file if the file is missing, lacks a report, or was
    made from other texts, by two states of a teacher, or by another than `teacher_hash`.
    """
    path = candidates_path(site, teacher)
    fix = f"run `fedpref teach {site.path}` with this teacher"
    if not path.exists():
        raise DataError(
            f"the teacher {teacher!r} has no candidates here", file=path, site=site.name, fix=fix
        )
    reports = pair_reports(site)
    candidates = {candidate.report_id: candidate for candidate in read_candidates(path)}
    missing = sum(report.report_id not in candidates for report in reports)
    stale = sum(
        report.report_id in candidates
        and candidates[report.report_id].report_hash != report_hash(report.text)
        for report in reports
    )
    states = {candidate.teacher_hash for candidate in candidates.values()}
    changed = len(states) > 1 or (teacher_hash is not None and not states <= {teacher_hash})
    for problem in (
        f"{missing} of {len(reports)} reports have no candidate" if missing else "",
        f"{stale} candidates were made from another text of their report" if stale else "",
        "the candidates were made by another state of the teacher" if changed else "",
    ):
        if problem:
            raise DataError(
                f"the teacher {teacher!r} is not up to date: {problem}",
                file=path,
                site=site.name,
                fix=fix,
            )
    return {report.report_id: candidates[report.report_id] for report in reports}
