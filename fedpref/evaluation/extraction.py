"""From reports to a model's answers: batched greedy generation with an adapter.

What a model generates here depends on the base, the adapter, the prompt and the report alone: the
base's own generation defaults (sampling, penalties, forced tokens) are put aside, batches are
padded on the left, and an answer ends at the end of turn or, truncated, at the token limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig, PreTrainedModel

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.data import Report
from fedpref.errors import DataError, ModelError
from fedpref.task import ONTOLOGY, Ontology, Projection, project
from fedpref.task.prompt import PromptStyle, messages
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import encode_prompt, stop_token_ids
from fedpref.training.session import adapter_session

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


@dataclass(frozen=True)
class Answer:
    """Generated tokens before the end of turn; `truncated` if the limit came before it."""

    token_ids: tuple[int, ...]
    truncated: bool


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

    Raises DataError if a prompt and the longest answer do not fit into the model's context: no
    prompt is ever cut.
    """
    prompts = [
        encode_prompt(base.tokenizer, messages(report.text, prompt_style, ontology))
        for report in reports
    ]
    answers = generate(
        base,
        spec,
        state,
        prompts,
        batch_size=settings.batch_size,
        max_new_tokens=settings.max_new_tokens,
    )
    texts = [
        str(
            base.tokenizer.decode(
                list(answer.token_ids),
                # A special token in the answer is part of what the model wrote.
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
        )
        for answer in answers
    ]
    return [
        Extraction(report.report_id, text, answer.truncated, project(text, ontology))
        for report, text, answer in zip(reports, texts, answers, strict=True)
    ]


def generate(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_new_tokens: int,
) -> list[Answer]:
    """Return the greedy answer to each prompt (token ids), in the order of `prompts`.

    Prompts of similar length share a batch, the longest come first. Batches may change the last
    bits of a logit, so that an answer can depend on them where two tokens are nearly equally good.
    """
    if not prompts:
        return []
    _check_context(base, max(map(len, prompts)), max_new_tokens)
    stops = stop_token_ids(base)
    pad = int(base.tokenizer.pad_token_id)
    answers: list[Answer | None] = [None] * len(prompts)
    with adapter_session(base, spec, state) as peft_model, torch.inference_mode():
        if base.dtype == "float32":
            # Half the time of a small model goes into the adapter's own products. A merge allocates
            # new weights, and the session puts the old ones back; bfloat16 would round it away.
            peft_model.merge_adapter(safe_merge=True)
        model = peft_model.get_base_model()
        # `generate` fills what a given configuration leaves open from the model's own.
        model.generation_config = greedy_config(stops, pad, max_new_tokens)
        for batch in _batches(prompts, batch_size):
            ids, mask = left_padded([prompts[index] for index in batch], pad)
            new = generate_batch(model, ids.to(base.device), mask.to(base.device))
            for index, row in zip(batch, new, strict=True):
                answers[index] = _answer(row, stops)
    return [answer for answer in answers if answer is not None]


def greedy_config(stops: Sequence[int], pad: int, max_new_tokens: int) -> GenerationConfig:
    """Return a generation configuration that leaves nothing but the best token at each step."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stops),
        pad_token_id=pad,
        use_cache=True,
    )


def left_padded(prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, (prompts, longest), with the padding on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = (torch.arange(longest)[None] >= longest - lengths[:, None]).long()
    return ids, mask


def generate_batch(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor
) -> list[list[int]]:
    """Return the new tokens of each row, as `model.generation_config` says, padding included.

    Raises ModelError on padding at the right: a model would continue the padding, not the prompt.
    """
    if not bool(mask[:, -1].all()):
        raise ModelError(
            "a batch of prompts is padded on the right",
            why="generation continues the last column, which is padding in some rows",
            fix="pad on the left",
        )
    output = model.generate(input_ids=ids, attention_mask=mask)
    new: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return new


def _batches(prompts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield the indices of each batch; the longest first, so that memory peaks at once."""
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _answer(new: list[int], stops: Sequence[int]) -> Answer:
    end = next((place for place, token in enumerate(new) if token in stops), None)
    return Answer(tuple(new[:end]), truncated=end is None)


def _check_context(base: BaseModel, longest: int, max_new_tokens: int) -> None:
    context = getattr(base.model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and longest + max_new_tokens > context:
        raise DataError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the base model's "
            f"context of {context}",
            why="no prompt is ever cut",
            fix="lower evaluation.max-new-tokens, use prompt.style = 'compact', or leave such "
            "reports out",
        )
