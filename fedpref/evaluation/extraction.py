"""From reports to a model's answers and what they say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.data import Report
from fedpref.errors import DataError, FedPrefError, raise_all
from fedpref.evaluation.answer_end import answer_text
from fedpref.evaluation.generation import check_context, generate
from fedpref.task import ONTOLOGY, Ontology, Projection, project
from fedpref.task.prompt import PromptStyle, messages
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import encode_prompt

if TYPE_CHECKING:
    from fedpref.config import EvaluationSettings


@dataclass(frozen=True)
class Extraction:
    """A model's answer to one report. `repr` shows no text."""

    report_id: str
    text: str
    truncated: bool
    projection: Projection

    def __repr__(self) -> str:
        return f"Extraction(report_id={self.report_id!r})"


def extract(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    reports: Sequence[Report],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    settings: "EvaluationSettings",
) -> list[Extraction]:
    """Return the greedy answer to each report with its projection, in the order of `reports`.

    Raises what `encode_reports` does.
    """
    prompts = encode_reports(
        base, reports, prompt_style=prompt_style, ontology=ontology, settings=settings
    )
    answers = generate(
        base,
        spec,
        state,
        prompts,
        batch_size=settings.batch_size,
        max_new_tokens=settings.max_new_tokens,
    )
    texts = [answer_text(base.tokenizer, answer.token_ids) for answer in answers]
    return [
        Extraction(report.report_id, text, answer.truncated, project(text, ontology))
        for report, text, answer in zip(reports, texts, answers, strict=True)
    ]


def encode_reports(
    base: BaseModel,
    reports: Sequence[Report],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    settings: "EvaluationSettings",
) -> list[list[int]]:
    """Return the token ids of the prompt for each report, in the order of `reports`.

    Raises DataError if a prompt and the longest answer do not fit into the model's context: no
    prompt is ever cut. So it does for reports that hold a special token, by their places.
    """
    prompts: list[list[int]] = []
    refused: list[FedPrefError] = []
    for number, report in enumerate(reports, 1):
        name = f"report {number} of {len(reports)}"
        asked = messages(report.text, prompt_style, ontology)
        try:
            prompts.append(encode_prompt(base.tokenizer, asked, name=name))
        except DataError as error:
            refused.append(error)
    raise_all(refused)
    check_context(base, prompts, settings.max_new_tokens)
    return prompts
