"""The answers of an evaluation, report by report, as a site keeps them; they never leave it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedpref.config import RunConfig
from fedpref.data import SiteDirectory
from fedpref.errors import DataError
from fedpref.evaluation.metrics import EvaluationCounts, report_counts
from fedpref.files import read_jsonl, write_jsonl
from fedpref.hashing import digest
from fedpref.task import project


@dataclass(frozen=True)
class Prediction:
    """One report's answer and counts, as the site keeps them. `repr` shows no text or patient."""

    report_id: str
    patient_id: str
    home_site: str | None
    text: str
    failure: str | None
    counts: EvaluationCounts

    def __repr__(self) -> str:
        return f"Prediction(report_id={self.report_id!r})"


def predictions_path(state_dir: Path, config: RunConfig, round_: int, adapter_hash: str) -> Path:
    """Return where a site keeps its answers of a round: one file for all that decides them."""
    return predictions_file(state_dir, round_, adapter_hash, asked_digest(config))


def predictions_file(state_dir: Path, round_: int, adapter_hash: str, asked: str) -> Path:
    """Return the same place where only the configuration's `asked_digest` is known."""
    return state_dir / "predictions" / f"round-{round_}-{adapter_hash[:12]}-{asked[:6]}.jsonl"


def asked_digest(config: RunConfig) -> str:
    """Return the hash of how answers were asked for: prompt and extraction settings."""
    return digest([config.evaluation.model_dump(), config.prompt.model_dump()])


def write_predictions(path: Path, rows: Sequence[Prediction]) -> None:
    """Write one JSON object a report, atomically."""
    write_jsonl(path, (asdict(row) for row in rows))


def read_predictions(path: Path) -> list[Prediction]:
    """Return the predictions of a file; DataError names the line that is malformed."""
    rows = []
    for line, row in read_jsonl(path):
        try:
            rows.append(_parse(row))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "the line is no prediction as `write_predictions` writes it",
                file=path,
                line=line,
                fix="delete the file; the next evaluation writes it again",
            ) from None
    return rows


def scored_again(row: Prediction, site: SiteDirectory) -> EvaluationCounts:
    """Return the counts of a kept answer under the annotation that the site has now."""
    annotation = site.annotations[row.report_id]
    return report_counts(
        project(row.text, site.ontology),
        annotation.structure,
        annotation.ignore,
        truncated=bool(row.counts.truncated),
    )


def _parse(row: Mapping[str, Any]) -> Prediction:
    names = {field.name for field in fields(Prediction)}
    if row.keys() != names:
        raise ValueError("other keys")
    return Prediction(**{**row, "counts": EvaluationCounts.from_dict(row["counts"])})
