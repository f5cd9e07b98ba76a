"""What each arm's runs measured: every development report's counts, checked against the runs.

The answers lie at the (simulated) sites and stay there. They are scored here once more, so that a
prediction file that was edited, or belongs to another annotation, cannot pass for a result.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from fedpref.data import SiteDirectory
from fedpref.errors import DataError, ResumeError
from fedpref.evaluation.metrics import EvaluationCounts, pooled
from fedpref.evaluation.predictions import predictions_path, read_predictions, scored_again
from fedpref.experiment.plan import Experiment, Job
from fedpref.federation.report import WITHHELD
from fedpref.files import read_jsonl

Record = dict[str, Any]

# A site's policy may blank these two in what it reports, if they are small.
_MAY_BE_WITHHELD: Final = ("empty_targets", "empty_with_prediction")
_OF_PAIRS: Final = ("pairs", "pairs_preferred")
# What the handshakes of all runs must have stated alike; `config` and the initial adapter are an
# arm's and a seed's own.
_SAME: Final = ("weights", "tokenizer", "prompt", "ontology", "adapter")
_AGAIN: Final = "delete the run's folder and compare again"


@dataclass(frozen=True, repr=False)
class ReportResult:
    """One report under one adapter: where it is at home, whose it is, and its counts."""

    site: str
    patient: str
    counts: EvaluationCounts


@dataclass(frozen=True, repr=False)
class RoundResult:
    """One arm, seed and round: each report's result by report id, and the held-out pairs' counts.

    `record` is the run's own; `withheld` are the sites whose policy gives out no counts.
    """

    reports: Mapping[str, ReportResult]
    pairs: EvaluationCounts
    trained_pairs: int
    record: Record
    withheld: tuple[str, ...] = ()


def collect(experiment: Experiment, job: Job) -> list[RoundResult]:
    """Return the results of a complete run, round by round.

    Raises ResumeError if the run is not complete, DataError naming both values where a prediction
    file disagrees with the run's record or with the annotations.
    """
    summary = run_summary(job)
    sites = (experiment.central,) if job.pooled else experiment.sites
    return [_round(job, sites, record) for record in summary["rounds"]]


def run_summary(job: Job) -> Record:
    """Return `summary.json` of a complete run; ResumeError if it is not complete."""
    path = job.run_dir / "summary.json"
    if not path.exists():
        raise ResumeError(
            f"the run of arm {job.arm}, seed {job.seed} is not complete",
            fix="run the comparison again: it goes on where it stopped",
            file=job.run_dir,
        )
    summary: Record = json.loads(path.read_text(encoding="utf-8"))
    return summary


def check_agreements(jobs: Sequence[Job]) -> Record:
    """Return what the sites agreed on; DataError unless it was the same in every run."""
    found = []
    for job in jobs:
        text = (job.run_dir / "agreement.json").read_text(encoding="utf-8")
        told = json.loads(text)
        found.append({**told["versions"], **{key: told["common"][key] for key in _SAME}})
    for job, other in zip(jobs, found, strict=True):
        for key, value in found[0].items():
            if other.get(key) != value:
                raise DataError(
                    f"{key} is {str(value)[:12]} in the runs of {jobs[0].arm}, "
                    f"{str(other.get(key))[:12]} in those of {job.arm}, seed {job.seed}",
                    why="arms are compared with one model, task and set of libraries",
                    fix="compare again into another folder",
                    file=job.run_dir,
                )
    return found[0]


def _round(job: Job, sites: Sequence[SiteDirectory], record: Record) -> RoundResult:
    reports: dict[str, ReportResult] = {}
    pairs = EvaluationCounts()
    withheld = []
    for site in sites:
        entry = record["sites"].get(site.name) or {"counts": None, "no_counts_because": "absent"}
        if entry["counts"] is None:
            if entry["no_counts_because"] != WITHHELD:
                raise DataError(
                    f"{job.arm}, seed {job.seed}, round {record['round']}: the site gave no "
                    f"counts ({entry['no_counts_because']})",
                    why="a comparison without one of its sites would be another comparison",
                    fix="mend the site, delete the run's folder and compare again",
                    file=job.run_dir,
                    site=site.name,
                )
            withheld.append(site.name)
            continue
        told = EvaluationCounts.from_dict(entry["counts"])
        rows = _rows(job, site, record)
        _check_total(job, site, record["round"], pooled(r.counts for r in rows.values()), told)
        reports |= rows
        pairs += EvaluationCounts(pairs=told.pairs, pairs_preferred=told.pairs_preferred)
    trained = sum(entry["pairs"] or 0 for entry in record["sites"].values())
    return RoundResult(reports, pairs, trained, record, tuple(withheld))


def _rows(job: Job, site: SiteDirectory, record: Record) -> dict[str, ReportResult]:
    """Return the result of each prediction by report id; every answer is scored again."""
    adapter = record["adapter"] or _own_adapter(job.run_dir, site.name, record["round"])
    path = predictions_path(
        site.state_dir(job.config.federation), job.config, record["round"], adapter
    )
    reports = {report.report_id: report for report in site.split("dev")}
    rows: dict[str, ReportResult] = {}
    stored, scored, differing = EvaluationCounts(), EvaluationCounts(), 0
    for line, row in enumerate(read_predictions(path), start=1):
        report = reports.get(row.report_id)
        if report is None or row.report_id in rows:
            raise DataError(
                "a prediction is for no development report, or for one that had one before",
                fix=_AGAIN,
                file=path,
                line=line,
                site=site.name,
            )
        counts = scored_again(row, site)
        stored, scored = stored + row.counts, scored + counts
        differing += counts != row.counts
        # Whose report it is, the site says, never the file.
        home = report.home_site or site.name
        rows[row.report_id] = ReportResult(home, report.patient_id, counts)
    if differing:
        # Sums over the site: those of one report would tell its annotation.
        raise DataError(
            f"{differing} predictions do not score what is stored with them: {_scores(stored)} "
            f"are stored, {_scores(scored)} are scored, in all",
            why="the file or the annotations were changed after the evaluation",
            fix=_AGAIN,
            file=path,
            site=site.name,
        )
    return rows


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
                fix=_AGAIN,
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
