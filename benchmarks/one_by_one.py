"""Greedy answers one report after the other, as transformers gives them, and how others differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from transformers import GenerationConfig, PreTrainedModel

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.evaluation.answer_end import AnswerEnd
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
    """Return each prompt's greedy answer before its end of turn, or as long as it may get."""
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
            new = output[0, len(prompt) :].tolist()
            answers.append(tuple(takewhile(lambda token: token not in stops, new)))
    return answers


def first_difference(one: Tokens, other: Tokens, *, decided: bool = False) -> int | None:
    """Return the first place at which the other answer is not the one; None if there is none.

    An answer that is `decided` may end before the one does.
    """
    places = enumerate(zip(one, other, strict=False))
    first = next((place for place, (a, b) in places if a != b), None)
    if first is not None or len(one) == len(other) or (decided and len(other) < len(one)):
        return first
    return min(len(one), len(other))


def is_decided(base: BaseModel, prompt: Sequence[int], answer: Tokens) -> bool:
    """Return whether FedPref may have ended the answer before the model did."""
    end = AnswerEnd(base.tokenizer, prompt)
    return any(end.reached(answer[: place + 1]) for place in range(len(answer)))


def differences(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    prompts: Sequence[Sequence[int]],
    one: Sequence[Tokens],
    other: Sequence[Tokens],
) -> list[Difference]:
    """Return where the other answers, FedPref's, differ from the one's, in order."""
    places = [
        first_difference(a, b, decided=is_decided(base, prompt, b))
        for prompt, a, b in zip(prompts, one, other, strict=True)
    ]
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
