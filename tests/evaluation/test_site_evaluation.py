"""A site's counts by hand, what is written at the site, and both on a tiny model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_pairs

from fedpref.config import EvaluationSettings, TrainingSettings
from fedpref.data import Annotation, Report, SiteDirectory, write_site
from fedpref.errors import DataError, TrainingError
from fedpref.evaluation import site_evaluation
from fedpref.evaluation.extraction import Extraction
from fedpref.evaluation.metrics import EvaluationCounts, pooled
from fedpref.evaluation.predictions import Prediction, read_predictions
from fedpref.evaluation.site_evaluation import (
    evaluate_site,
    preference_counts,
)
from fedpref.task import Ignore, Structure, project
from fedpref.training.reference import sequence_logps

EFFUSION, LEFT, RIGHT = "pleural effusion", "left lung", "right lung"
SETTINGS: dict[str, Any] = {
    "prompt_style": "compact",
    "settings": EvaluationSettings(),
    "training": TrainingSettings(),
}

# (target, ignore, answer, truncated)
CASES: list[tuple[Structure, Ignore, str, bool]] = [
    # One right finding, one wrong, one missed; its answer is an object with prose around it.
    (
        Structure(findings=[(EFFUSION, LEFT), ("atelectasis", LEFT)]),
        Ignore(),
        "Findings: " + Structure(findings=[(EFFUSION, LEFT), (EFFUSION, RIGHT)]).to_json(),
        False,
    ),
    # Empty target, something predicted.
    (Structure(), Ignore(), Structure(["pneumonia"]).to_json(), False),
    # Empty target, nothing predicted.
    (Structure(), Ignore(), Structure().to_json(), False),
    # Nothing annotated, but a disease is left undecided: no empty target, and nothing counts.
    (Structure(), Ignore(diseases={"pneumonia"}), Structure(["pneumonia"]).to_json(), False),
    # Cut by the token limit: no object, so that all of the target is missed.
    (Structure(findings=[("pneumothorax", RIGHT)]), Ignore(), '{"diseases":["pneu', True),
    # Only places are undecided: the disease counts, its findings do not.
    (
        Structure([EFFUSION]),
        Ignore(locations_of={EFFUSION}),
        Structure(findings=[(EFFUSION, LEFT)]).to_json(),
        False,
    ),
]
EXPECTED = EvaluationCounts(
    reports=6,
    tp=1,
    fp=1,
    fn=2,
    disease_tp=2,
    disease_fp=1,
    disease_fn=2,
    projected=5,
    strict=4,
    truncated=1,
    empty_targets=2,
    empty_with_prediction=1,
)


@pytest.fixture
def site(tmp_path: Path) -> SiteDirectory:
    reports = [Report(f"r{i}", f"p{i}", "dev", f"words of report {i}") for i in range(len(CASES))]
    reports.append(Report("train", "other", "train", "words of a training report"))
    annotations = [
        Annotation(f"r{i}", target, ignore) for i, (target, ignore, _, _) in enumerate(CASES)
    ]
    annotations.append(Annotation("train", Structure(["pneumonia"])))
    write_site(tmp_path / "site", name="site-a", reports=reports, annotations=annotations)
    return SiteDirectory.load(tmp_path / "site")


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that gives the answers of CASES."""

    def fake(*args: Any, **_: Any) -> list[Extraction]:
        reports: Sequence[Report] = args[3]
        return [
            Extraction(report.report_id, text, cut, project(text))
            for report, (_, _, text, cut) in zip(reports, CASES, strict=True)
        ]

    monkeypatch.setattr(site_evaluation, "extract", fake)


@pytest.mark.usefixtures("answered")
def test_counts_by_hand(site: SiteDirectory, tmp_path: Path) -> None:
    assert _evaluate(site, tmp_path / "predictions.jsonl") == EXPECTED


@pytest.mark.usefixtures("answered")
def test_rows_add_up_to_the_counts_and_stay_at_the_site(
    site: SiteDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "predictions.jsonl"
    _evaluate(site, path)
    rows = read_predictions(path)
    assert [row.report_id for row in rows] == [f"r{i}" for i in range(len(CASES))]
    assert [row.patient_id for row in rows] == [f"p{i}" for i in range(len(CASES))]
    assert [row.text for row in rows] == [text for _, _, text, _ in CASES]
    assert pooled(row.counts for row in rows) == EXPECTED
    assert [row.failure for row in rows] == [None] * 4 + ["no_object", None]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.usefixtures("answered")
def test_malformed_rows_are_named_by_line_without_their_text(
    site: SiteDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "predictions.jsonl"
    _evaluate(site, path)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, rest[0].replace('"tp":0', '"tp":-1'), *rest[1:]]))
    with pytest.raises(DataError, match=r"predictions\.jsonl:2") as error:
        read_predictions(path)
    assert "pneumonia" not in str(error.value)
    assert "pneumonia" not in repr(Prediction("r", "p", None, "pneumonia", None, EXPECTED))


def test_an_interrupted_evaluation_leaves_the_old_rows(
    site: SiteDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> list[Extraction]:
        raise TrainingError("the machine is off")

    monkeypatch.setattr(site_evaluation, "extract", fail)
    path = tmp_path / "predictions.jsonl"
    path.write_text("old\n")
    with pytest.raises(TrainingError):
        _evaluate(site, path)
    assert path.read_text() == "old\n"


def test_preferred_pairs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = make_pairs(4)
    logps = {"pair-0": (-1.0, -2.0), "pair-1": (-3.0, -2.0), "pair-2": (-2.0, -2.0)}
    logps["pair-3"] = (-0.5, -0.6)
    monkeypatch.setattr(site_evaluation, "sequence_logps", lambda *_, **__: logps)
    nothing: Any = None
    assert preference_counts(nothing, nothing, {}, pairs, nothing) == EvaluationCounts(
        pairs=4, pairs_preferred=2
    )
    # Two reports of one text share a pair; each counts.
    assert (
        preference_counts(nothing, nothing, {}, [pairs[0], pairs[0]], nothing).pairs_preferred == 2
    )


def test_on_a_model(
    base: Any, spec: Any, adapter: Any, site: SiteDirectory, tmp_path: Path
) -> None:
    pairs = make_pairs(6)
    counts = evaluate_site(
        base,
        spec,
        adapter,
        site,
        pairs,
        prompt_style="compact",
        settings=EvaluationSettings(batch_size=4, max_new_tokens=5),
        training=TrainingSettings(),
        predictions=tmp_path / "predictions.jsonl",
    )
    logps = sequence_logps(base, spec, adapter, pairs, TrainingSettings())
    assert counts.reports == len(CASES)
    assert counts.tp + counts.fn == 3  # the findings of the targets, whatever was answered
    assert counts.pairs == 6
    assert counts.pairs_preferred == sum(chosen > rejected for chosen, rejected in logps.values())


def test_a_site_without_reports_or_pairs_counts_nothing(
    base: Any, spec: Any, adapter: Any, site: SiteDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "predictions.jsonl"
    counts = evaluate_site(
        base, spec, adapter, site, [], split="test", predictions=path, **SETTINGS
    )
    assert counts == EvaluationCounts()
    assert path.read_text() == ""


def _evaluate(site: SiteDirectory, path: Path) -> EvaluationCounts:
    nothing: Any = None
    return evaluate_site(nothing, nothing, {}, site, [], predictions=path, **SETTINGS)
