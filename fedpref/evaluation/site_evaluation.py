"""An adapter on a site's held-out reports and pairs: counts that may leave, answers that stay."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import EvaluationSettings, TrainingSettings
from fedpref.data import Annotation, Report, SiteDirectory
from fedpref.evaluation.extraction import extract
from fedpref.evaluation.metrics import EvaluationCounts, pooled, report_counts
from fedpref.evaluation.predictions import Prediction, write_predictions
from fedpref.task import ONTOLOGY, Ontology
from fedpref.task.prompt import PromptStyle
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.reference import sequence_logps


def evaluate_site(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    site: SiteDirectory,
    pairs: Sequence[EncodedPair],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    settings: EvaluationSettings,
    training: TrainingSettings,
    predictions: Path,
    split: str = "dev",
) -> EvaluationCounts:
    """Return the counts of an adapter on the reports of a split and on held-out `pairs`.

    The pairs' log-probs are computed as `training` computes them.
    The answers are written to `predictions`, one row a report, as a whole or not at all. The file
    belongs in the site's state folder and never leaves it.
    """
    rows = predict(
        base,
        spec,
        state,
        site.split(split),
        site.annotations,
        prompt_style=prompt_style,
        ontology=ontology,
        settings=settings,
    )
    write_predictions(predictions, rows)
    preferred = preference_counts(base, spec, state, pairs, training)
    return pooled(row.counts for row in rows) + preferred


def predict(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    reports: Sequence[Report],
    annotations: Mapping[str, Annotation],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    settings: EvaluationSettings,
) -> list[Prediction]:
    """Return the answer to each report and its counts against the annotation, in order."""
    extractions = extract(
        base, spec, state, reports, prompt_style=prompt_style, ontology=ontology, settings=settings
    )
    rows = []
    for report, extraction in zip(reports, extractions, strict=True):
        annotation = annotations[report.report_id]
        counts = report_counts(
            extraction.projection,
            annotation.structure,
            annotation.ignore,
            truncated=extraction.truncated,
        )
        rows.append(
            Prediction(
                report.report_id,
                report.patient_id,
                report.home_site,
                extraction.text,
                extraction.projection.failure,
                counts,
            )
        )
    return rows


def preference_counts(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    training: TrainingSettings,
) -> EvaluationCounts:
    """Return how many of the pairs have log π(chosen|x) > log π(rejected|x), over whole responses.

    A tie is not preferred.
    """
    logps = sequence_logps(base, spec, state, pairs, training)
    # By pair, not by pair id: two reports of the same text share an id and count twice.
    both = [logps[pair.pair_id] for pair in pairs]
    return EvaluationCounts(
        pairs=len(both), pairs_preferred=sum(chosen > rejected for chosen, rejected in both)
    )
