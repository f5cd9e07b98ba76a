"""One site's evaluation of one adapter: answers and rows stay at the site, only counts leave it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import EvaluationSettings
from fedpref.data import Annotation, SiteDirectory
from fedpref.errors import DataError
from fedpref.evaluation.extraction import Extraction, extract
from fedpref.evaluation.metrics import EvaluationCounts, pooled, report_counts
from fedpref.files import write_jsonl
from fedpref.task import ONTOLOGY, Ontology, PromptStyle, match_counts
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
    predictions: Path,
    split: str = "dev",
) -> EvaluationCounts:
    """Return the counts of an adapter over the reports of a split and over held-out `pairs`.

    `predictions` gets one row a report: `report_id`, the answer's `text`, `truncated`, the
    projection's `failure`, and the match counts. It belongs in the site's state folder and never
    leaves it. Raises DataError for a report without annotation.
    """
    reports = site.split(split)
    annotations = [_annotation(site, report.report_id) for report in reports]
    extractions = extract(
        base,
        spec,
        state,
        reports,
        prompt_style=prompt_style,
        ontology=ontology,
        settings=settings,
    )
    write_jsonl(
        predictions,
        (_row(e, a) for e, a in zip(extractions, annotations, strict=True)),
    )
    each = [
        report_counts(e.projection, a.structure, a.ignore, truncated=e.truncated)
        for e, a in zip(extractions, annotations, strict=True)
    ]
    return pooled([*each, preference_counts(base, spec, state, pairs)])


def preference_counts(
    base: BaseModel, spec: AdapterSpec, state: AdapterState, pairs: Sequence[EncodedPair]
) -> EvaluationCounts:
    """Return `pairs` and those with log π(chosen) > log π(rejected), summed over response tokens.

    Equal log-probs are not preferred. Reports of the same text and responses share a pair id, and
    each counts.
    """
    logps = sequence_logps(base, spec, state, pairs)
    preferred = sum(logps[pair.pair_id][0] > logps[pair.pair_id][1] for pair in pairs)
    return EvaluationCounts(pairs=len(pairs), pairs_preferred=preferred)


def _annotation(site: SiteDirectory, report_id: str) -> Annotation:
    try:
        return site.annotations[report_id]
    except KeyError:
        raise DataError(
            "a report to evaluate on has no annotation",
            site=site.name,
            fix="run `fedpref site check`",
        ) from None


def _row(extraction: Extraction, annotation: Annotation) -> dict[str, object]:
    match = match_counts(extraction.projection.structure, annotation.structure, annotation.ignore)
    return {
        "report_id": extraction.report_id,
        "text": extraction.text,
        "truncated": extraction.truncated,
        "failure": extraction.projection.failure,
        **asdict(match),
    }
