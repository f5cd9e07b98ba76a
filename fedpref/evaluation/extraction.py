"""Greedy extraction of reports in batches, under the base model with an adapter.

A report's answer does not depend on its batch mates: prompts are padded on the left, masked, and
positions count from the first real token (float32 answers equal those of one-by-one generation;
lower precision may differ where two tokens are nearly equally likely).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import EvaluationSettings
from fedpref.data import Report
from fedpref.errors import ModelError
from fedpref.task import ONTOLOGY, Ontology, Projection, PromptStyle, messages, project
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import encode_prompt, stop_token_ids
from fedpref.training.session import adapter_session


@dataclass(frozen=True)
class Extraction:
    """What the model answered to one report, and what that says. `repr` shows no text.

    `truncated`: the token limit came before the end of turn. That is no failure by itself, the
    answer is projected like any other.
    """

    report_id: str
    text: str
    truncated: bool
    projection: Projection

    def __repr__(self) -> str:
        return f"Extraction(report_id={self.report_id!r}, truncated={self.truncated})"


def extract(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    reports: Sequence[Report],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    settings: EvaluationSettings,
) -> list[Extraction]:
    """Return the greedy extraction of each report, in the order of `reports`.

    Raises ModelError if a prompt and the longest answer do not fit into the model's context.
    """
    prompts = [
        encode_prompt(base.tokenizer, messages(report.text, prompt_style, ontology))
        for report in reports
    ]
    answers = generate_greedy(base, spec, state, prompts, settings=settings)
    stops = set(stop_token_ids(base))
    extractions = []
    for report, answer in zip(reports, answers, strict=True):
        truncated = not answer or answer[-1] not in stops
        text = str(
            base.tokenizer.decode(
                answer if truncated else answer[:-1],
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
        )
        extractions.append(Extraction(report.report_id, text, truncated, project(text, ontology)))
    return extractions


def generate_greedy(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    prompts: Sequence[Sequence[int]],
    *,
    settings: EvaluationSettings,
) -> list[list[int]]:
    """Return the answer's token ids of each prompt, through the first stop token if there is one.

    Nothing of the model's own generation configuration is used: sampling, a repetition penalty or
    a ban on tokens would be a decoding of its own.
    """
    if not prompts:
        return []
    _check_context(base, max(map(len, prompts)), settings.max_new_tokens)
    stops = stop_token_ids(base)
    # Equal lengths together, the longest first: little padding, and too little memory shows at once
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    answers: list[list[int]] = [[] for _ in prompts]
    with adapter_session(base, spec, state) as model, torch.inference_mode():
        # `generate` fills what a given configuration leaves open from the model's own.
        model.generation_config = GenerationConfig()
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=list(stops),
            pad_token_id=base.tokenizer.pad_token_id,
        )
        for start in range(0, len(order), settings.batch_size):
            batch = order[start : start + settings.batch_size]
            inputs = left_padded([prompts[i] for i in batch], base.tokenizer.pad_token_id)
            inputs = {name: tensor.to(base.device) for name, tensor in inputs.items()}
            output = model.generate(**inputs, generation_config=config)
            new = output[:, inputs["input_ids"].shape[1] :].tolist()
            for i, ids in zip(batch, new, strict=True):
                answers[i] = _through_stop(ids, stops)
    return answers


def left_padded(prompts: Sequence[Sequence[int]], pad: int) -> dict[str, Any]:
    """Return `input_ids` and `attention_mask`, (prompts, longest), padded on the left.

    The tokenizer's own padding side is not asked: on the right, answers would follow padding.
    """
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts]),
        "attention_mask": torch.tensor(
            [[0] * (width - len(p)) + [1] * len(p) for p in prompts], dtype=torch.long
        ),
    }


def _through_stop(ids: list[int], stops: Sequence[int]) -> list[int]:
    """Cut off what follows the first stop token: padding up to the longest answer of the batch."""
    end = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    return ids[: end + 1]


def _check_context(base: BaseModel, longest: int, new: int) -> None:
    context = getattr(base.model.config, "max_position_embeddings", None)
    if isinstance(context, int) and longest + new > context:
        raise ModelError(
            f"the longest prompt has {longest} tokens and its answer may take {new}, but the model "
            f"reads at most {context}",
            why="nothing is ever cut",
            fix="lower evaluation.max-new-tokens, use the compact prompt, or another base model",
        )
