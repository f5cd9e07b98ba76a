"""Greedy answers one report after the other, as transformers gives them, and how others differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import stop_token_ids
from fedpref.training.session import adapter_session

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Where an answer leaves the other: report and token by place, and how sure the model was.

    `gap` is the distance of the two best logits there. No text.
    """

    report: int
    token: int
    gap: float


def one_by_one(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> list[Tokens]:
    """Return each prompt's greedy answer, up to and with the end of turn, if it comes."""
    stops = stop_token_ids(base)
    with adapter_session(base, spec, state) as peft_model, torch.inference_mode():
        model = _merged(peft_model, base)
        model.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stops),
            pad_token_id=int(base.tokenizer.pad_token_id),
        )
        answers = []
        for prompt in prompts:
            ids = torch.tensor([list(prompt)], device=base.device)
            output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
            answers.append(tuple(output[0, len(prompt) :].tolist()))
    return answers


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """Return the first place at which both have a token and not the same; None if there is none."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def differences(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    prompts: Sequence[Sequence[int]],
    one: Sequence[Tokens],
    other: Sequence[Tokens],
) -> list[Difference]:
    """Return the differences of two lists of answers, in order."""
    places = [first_difference(a, b) for a, b in zip(one, other, strict=True)]
    found = []
    with adapter_session(base, spec, state) as peft_model, torch.inference_mode():
        model = _merged(peft_model, base)
        for number, place in enumerate(places):
            if place is not None:
                ids = torch.tensor([[*prompts[number], *one[number][:place]]], device=base.device)
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
                best, second = logits.float().topk(2).values.tolist()
                found.append(Difference(number, place, best - second))
    return found


def _merged(peft_model: torch.nn.Module, base: BaseModel) -> PreTrainedModel:
    """Return the model with the adapter added to its weights where no precision is lost by it."""
    if base.dtype == "float32":
        peft_model.merge_adapter(safe_merge=True)
    return peft_model.get_base_model()
