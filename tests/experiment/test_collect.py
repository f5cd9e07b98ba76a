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
from fedpref.experiment.collect import by_site, collect
from fedpref.experiment.plan import Experiment, Job, open_experiment
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
    told = {
        site.name: predict(
            site, predictions_path(site.state_dir(job.config.federation), 0, adapter or ADAPTER)
        )
        for site in sites
    }
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
    return open_experiment(tmp_path / "x", config.model_copy(update={"rounds": 0}), [5])


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


def edit(path: Path, **changes: Any) -> None:
    rows = read_predictions(path)
    write_jsonl(path, [asdict(rows[0]) | changes, *(asdict(row) for row in rows[1:])])


def test_an_edited_answer_is_refused_with_both_scores(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = predictions_path(experiment.sites[0].state_dir("demo"), 0, ADAPTER)
    edit(path, text='{"diseases":[],"findings":[]}')
    with pytest.raises(DataError, match="stored with tp 1, fp 0, fn 0, its text scores tp 0") as e:
        collect(experiment, job)
    assert "north-dev" not in str(e.value)
    assert e.value.line == 1


def test_a_consistently_edited_answer_disagrees_with_the_record(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    site = experiment.sites[1]
    predict(site, predictions_path(site.state_dir("demo"), 0, ADAPTER), text="{}")
    with pytest.raises(DataError, match="tp is 0 in the stored predictions and 1 in the run's"):
        collect(experiment, job)


def test_a_removed_answer_disagrees_with_the_record(experiment: Experiment) -> None:
    job = experiment.jobs()[0]
    finish(job, experiment.sites)
    path = predictions_path(experiment.sites[0].state_dir("demo"), 0, ADAPTER)
    write_predictions(path, read_predictions(path)[:1])
    with pytest.raises(DataError, match="reports is 1 in the stored predictions and 2"):
        collect(experiment, job)


def test_a_run_that_is_not_complete_is_named(experiment: Experiment) -> None:
    with pytest.raises(ResumeError, match="arm fedpref, seed 5 is not complete"):
        collect(experiment, experiment.jobs()[0])
