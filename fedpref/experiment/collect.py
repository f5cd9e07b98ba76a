"""What each arm's runs measured: every development report's counts, checked against the runs.

The answers lie at the (simulated) sites and stay there. They are scored here once more, so that a
prediction file that was edited, or belongs to another annotation, cannot pass for a result.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from fedpref.data import SiteDirectory
from fedpref.errors import DataError, ResumeError
from fedpref.evaluation.metrics import EvaluationCounts, pooled, report_counts
from fedpref.evaluation.predictions import predictions_path, read_predictions
from fedpref.experiment.plan import Experiment, Job
from fedpref.files import read_jsonl
from fedpref.task import project

Record = dict[str, Any]

# A site's policy may blank these two in what it reports, if they are small.
_MAY_BE_WITHHELD: Final = ("empty_targets", "empty_with_prediction")
_OF_PAIRS: Final = ("pairs", "pairs_preferred")


@dataclass(frozen=True)
class ReportResult:
    """One report under one adapter: where it is at home, whose it is, and its counts."""

    site: str
    patient: str
    counts: EvaluationCounts


@dataclass(frozen=True)
class RoundResult:
    """One arm, seed and round: each report's result by report id, and the held-out pairs' counts.

    `records` are the rounds' own records: one of the whole run, or one a site for Local.
    """

    reports: Mapping[str, ReportResult]
    pairs: EvaluationCounts
    trained_pairs: int
    record: Record


def collect(experiment: Experiment, job: Job) -> list[RoundResult]:
    """Return the results of a complete run, round by round.

    Raises ResumeError if the run is not complete, DataError naming both values where a prediction
    file disagrees with the run's record or with the annotations.
    """
    summary = _summary(job)
    sites = (experiment.central,) if job.arm == "central" else experiment.sites
    return [_round(job, sites, record) for record in summary["rounds"]]


def _summary(job: Job) -> Record:
    path = job.run_dir / "summary.json"
    if not path.exists():
        raise ResumeError(
            f"the run of arm {job.arm}, seed {job.seed} is not complete",
            fix="run the comparison again: it goes on where it stopped",
            file=job.run_dir,
        )
    summary: Record = json.loads(path.read_text(encoding="utf-8"))
    return summary


def _round(job: Job, sites: Sequence[SiteDirectory], record: Record) -> RoundResult:
    reports: dict[str, ReportResult] = {}
    pairs = EvaluationCounts()
    for site in sites:
        entry = record["sites"].get(site.name)
        if entry is None or entry["counts"] is None:
            continue
        told = EvaluationCounts.from_dict(entry["counts"])
        rows = dict(_rows(job, site, record))
        _check_total(job, site, record["round"], pooled(r.counts for r in rows.values()), told)
        reports |= rows
        pairs += replace(EvaluationCounts(), pairs=told.pairs, pairs_preferred=told.pairs_preferred)
    trained = sum(entry["pairs"] or 0 for entry in record["sites"].values())
    return RoundResult(reports, pairs, trained, record)


def _rows(job: Job, site: SiteDirectory, record: Record) -> Iterator[tuple[str, ReportResult]]:
    """Yield the report id and result of each prediction; every one is scored again."""
    adapter = record["adapter"] or _own_adapter(job.run_dir, site.name, record["round"])
    path = predictions_path(site.state_dir(job.config.federation), record["round"], adapter)
    for line, row in enumerate(read_predictions(path), start=1):
        annotation = site.annotations.get(row.report_id)
        if annotation is None:
            raise DataError(
                "a prediction belongs to no annotated report", file=path, line=line, site=site.name
            )
        counts = report_counts(
            project(row.text, site.ontology),
            annotation.structure,
            annotation.ignore,
            truncated=bool(row.counts.truncated),
        )
        if counts != row.counts:
            raise DataError(
                f"the prediction is stored with {_scores(row.counts)}, "
                f"its text scores {_scores(counts)}",
                why="the file or the annotation was changed after the evaluation",
                fix="delete the run's folder and compare again",
                file=path,
                line=line,
                site=site.name,
            )
        yield row.report_id, ReportResult(row.home_site or site.name, row.patient_id, counts)


def _own_adapter(run_dir: Path, site: str, round_: int) -> str:
    """Return the hash of the adapter of a site that trains alone."""
    rows = read_jsonl(run_dir / "sites" / site / "rounds.jsonl")
    return next(str(row["adapter"]) for _, row in rows if row["round"] == round_)


def _check_total(
    job: Job, site: SiteDirectory, round_: int, found: EvaluationCounts, told: EvaluationCounts
) -> None:
    skipped = (*_MAY_BE_WITHHELD, *_OF_PAIRS)
    for name in (f.name for f in fields(EvaluationCounts) if f.name not in skipped):
        one, other = getattr(found, name), getattr(told, name)
        if one != other:
            raise DataError(
                f"{job.arm}, seed {job.seed}, round {round_}: {name} is {one} in the stored "
                f"predictions and {other} in the run's record",
                why="the predictions are not those of this run",
                fix="delete the run's folder and compare again",
                file=job.run_dir,
                site=site.name,
            )


def _scores(counts: EvaluationCounts) -> str:
    return f"tp {counts.tp}, fp {counts.fp}, fn {counts.fn}"


def by_site(result: RoundResult) -> dict[str, EvaluationCounts]:
    """Return the counts of each home site, sorted; the pairs are not in them."""
    groups: dict[str, list[EvaluationCounts]] = defaultdict(list)
    for report in result.reports.values():
        groups[report.site].append(report.counts)
    return {site: pooled(groups[site]) for site in sorted(groups)}
