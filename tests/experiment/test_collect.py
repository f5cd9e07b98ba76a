"""Predictions are believed only if they fit the run's record and the annotations."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fedpref.config import RunConfig
from fedpref.data import SiteDirectory
from fedpref.errors import DataError, ResumeError
from fedpref.evaluation.metrics import EvaluationCounts, pooled, report_counts
from fedpref.evaluation.predictions import (
    Prediction,
    predictions_path,
    read_predictions,
    write_predictions,
)
from fedpref.experiment.collect import by_site, check_agreements, collect
from fedpref.experiment.plan import Experiment, Job, open_experiment
from fedpref.federation.report import WITHHELD
from fedpref.files import write_jsonl
from fedpref.task import project

ANSWER = '{"diseases":["pleural effusion"],"findings":[{"disease":"pleural effusion","location":"right lung"}]}'  # noqa: E501
ADAPTER = "ab" * 32


def predict(site: SiteDirectory, path: Path, text: str = ANSWER) -> EvaluationCounts:
    """Write what a site would after an evaluation in which every answer is `text`."""
    rows = []
    for report in site.split("dev"):
        annotation = site.annotations[report.report_id]
        counts = report_counts(
            project(text), annotation.structure, annotation.ignore, truncated=False
        )
        rows.append(
            Prediction(report.report_id, report.patient_id, report.home_site, text, None, counts)
        )
    write_predictions(path, rows)
    return pooled(row.counts for row in rows)


def record(counts: dict[str, EvaluationCounts], adapter: str | None) -> dict[str, Any]:
    sites = {
        name: {"pairs": 2, "counts": replace(c, pairs=5, pairs_preferred=3).to_dict()}
        for name, c in counts.items()
    }
    return {"round": 0, "adapter": adapter, "sites": sites}


def finish(job: Job, sites: tuple[SiteDirectory, ...], adapter: str | None = ADAPTER) -> None:
    """Leave what a run of one round leaves, with its predictions."""
    told = {site.name: predict(site, answers_of(site, job)) for site in sites}
    job.run_dir.mkdir(parents=True)
    summary = {"rounds": [record(told, adapter)]}
    (job.run_dir / "summary.json").write_text(json.dumps(summary))
    if adapter is None:
        for site in sites:
            write_jsonl(
                job.run_dir / "sites" / site.name / "rounds.jsonl",
                [{"round": 0, "adapter": ADAPTER}],
            )


@pytest.fixture
def experiment(tmp_path: Path, config: RunConfig) -> Experiment:
    return open_experiment(tmp_path / "x", config.model_copy(update={"rounds": 0}), [5]).begin()


def test_every_arm_is_read_by_home_site(experiment: Experiment) -> None:
    fedpref, local, central = experiment.jobs()
    finish(fedpref, experiment.sites)
    finish(local, experiment.sites, adapter=None)
    finish(central, (experiment.central,))
    results = [collect(experiment, job)[0] for job in (fedpref, local, central)]
    # One dev report of each site has the effusion of every answer (2·1), the other has nothing.
    expected = EvaluationCounts(
        reports=2, tp=1, fp=1, disease_tp=1, disease_fp=1, projected=2, strict=2,
        empty_targets=1, empty_with_prediction=1,
    )  # fmt: skip
    for result in results:
        assert by_site(result) == {"north": expected, "south": expected}
        assert set(result.reports) == {f"{n}-dev-{k}" for n in ("north", "south") for k in (0, 1)}
    assert [result.trained_pairs for result in results] == [4, 4, 2]
    assert [result.pairs.pairs for result in results] == [10, 10, 5]


def answers_of(site: SiteDirectory, job: Job) -> Path:
    return predictions_path(site.state_dir("demo"), job.config, 0, ADAPTER)


def edit(path: Path, **changes: Any) -> None:
    rows = read_predictions(path)
    write_jsonl(path, [asdict(rows[0]) | changes, *(asdict(row) for row in rows[1:])])


def test_an_edited_answer_is_refused_with_both_scores(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = answers_of(experiment.sites[0], job)
    edit(path, text='{"diseases":[],"findings":[]}')
    stored, scored = "tp 1, fp 1, fn 0 are stored", "tp 0, fp 1, fn 1 are scored"
    with pytest.raises(DataError, match=f"1 predictions .*{stored}, {scored}") as caught:
        collect(experiment, job)
    assert "north-dev" not in str(caught.value)


def test_home_and_patient_are_what_the_site_says(experiment: Experiment) -> None:
    job = experiment.jobs()[2]
    finish(job, (experiment.central,))
    before = collect(experiment, job)[0].reports
    edit(answers_of(experiment.central, job), home_site="south", patient_id="somebody")
    assert collect(experiment, job)[0].reports == before
    assert {r.site for r in before.values()} == {"north", "south"}


def test_a_repeated_or_strange_answer_is_refused(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = answers_of(experiment.sites[0], job)
    rows = read_predictions(path)
    for row in (rows[0], replace(rows[0], report_id="north-test-0")):
        write_predictions(path, [*rows, row])
        with pytest.raises(DataError, match="no development report, or for one that had one"):
            collect(experiment, job)


def test_a_site_that_failed_is_named_and_not_left_out(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = job.run_dir / "summary.json"
    summary = json.loads(path.read_text())
    entry = summary["rounds"][0]["sites"]["south"]
    entry |= {"counts": None, "no_counts_because": "no reply within round-deadline = 5 s"}
    path.write_text(json.dumps(summary))
    with pytest.raises(DataError, match=r"gave no counts \(no reply within") as caught:
        collect(experiment, job)
    assert caught.value.site == "south"
    entry["no_counts_because"] = WITHHELD
    path.write_text(json.dumps(summary))
    (result,) = collect(experiment, job)
    assert result.withheld == ("south",)
    assert {r.site for r in result.reports.values()} == {"north"}


def test_runs_with_another_model_are_refused_with_both_hashes(experiment: Experiment) -> None:
    jobs = experiment.jobs()
    for job, weights in zip(jobs, ("1" * 64, "1" * 64, "2" * 64), strict=True):
        job.run_dir.mkdir(parents=True)
        same = dict.fromkeys(("tokenizer", "prompt", "ontology", "adapter"), "0" * 64)
        told = {"common": {**same, "weights": weights}, "versions": {"torch": "2.13.0"}}
        (job.run_dir / "agreement.json").write_text(json.dumps(told))
    assert check_agreements(jobs[:2])["torch"] == "2.13.0"
    with pytest.raises(DataError, match=r"weights is 111111111111 .* 222222222222 .* central"):
        check_agreements(jobs)


def test_a_consistently_edited_answer_disagrees_with_the_record(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    site = experiment.sites[1]
    predict(site, answers_of(site, job), text="{}")
    with pytest.raises(DataError, match="tp is 0 in the stored predictions and 1 in the run's"):
        collect(experiment, job)


def test_a_removed_answer_disagrees_with_the_record(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = answers_of(experiment.sites[0], job)
    write_predictions(path, read_predictions(path)[:1])
    with pytest.raises(DataError, match="reports is 1 in the stored predictions and 2"):
        collect(experiment, job)


def test_a_run_that_is_not_complete_is_named(experiment: Experiment) -> None:
    with pytest.raises(ResumeError, match="arm fedpref, seed 5 is not complete"):
        collect(experiment, experiment.jobs()[0])
