"""Batched greedy generation with an adapter, the prompts' common beginning computed once.

What a model generates here depends on the base, the adapter and the prompt alone: the base's own
generation defaults (sampling, penalties, forced tokens) have no part in it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import DataError
from fedpref.evaluation.answer_end import AnswerEnd
from fedpref.evaluation.shared_prefix import (
    SharedPrefix,
    allows_gaps,
    allows_padding,
    common_prefix,
)
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import stop_token_ids
from fedpref.training.session import adapter_session

# Gets an answer's next token and says whether it wants more.
_Taker = Callable[[int], bool]


@dataclass(frozen=True)
class Answer:
    """Generated tokens without the end of turn; `truncated` if the token limit came first.

    An answer ends at the end of turn, or before it where its projection is decided (`AnswerEnd`):
    it then counts as whole, and its tokens show that the model went on, so that `strict` is false
    for it as for all that would have followed.
    """

    token_ids: tuple[int, ...]
    truncated: bool


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
    Raises DataError if a prompt and the longest answer do not fit into the model's context.
    """
    if not prompts:
        return []
    check_context(base, prompts, max_new_tokens)
    with adapter_session(base, spec, state) as peft_model, torch.inference_mode():
        if base.dtype == "float32":
            # Half the time of a small model goes into the adapter's own products. A merge allocates
            # new weights, and the session puts the old ones back; bfloat16 would round it away.
            peft_model.merge_adapter(safe_merge=True)
        model: PreTrainedModel = peft_model.get_base_model()
        return greedy_answers(
            model,
            base.tokenizer,
            prompts,
            stops=stop_token_ids(base),
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
        )


def greedy_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    stops: Collection[int],
    batch_size: int,
    max_new_tokens: int,
) -> list[Answer]:
    """Return the greedy answer of `model` to each prompt, in the order of `prompts`.

    To be called inside a model session and inference mode, on the bare model.
    """
    answers = [_Growing(tokenizer, prompt, stops, max_new_tokens) for prompt in prompts]
    pad = int(tokenizer.pad_token_id)
    # `generate` would fill what a given configuration leaves open from the model's own.
    model.generation_config = greedy_config(stops, pad, max_new_tokens)
    prefix = None
    if not allows_padding(model):
        batch_size = 1
    elif allows_gaps(model, max(map(len, prompts)) + max_new_tokens):
        prefix = SharedPrefix(model, common_prefix(prompts) if len(prompts) > 1 else [])
    for batch in _batches(prompts, batch_size):
        chosen = [prompts[index] for index in batch]
        takers = [answers[index].take for index in batch]
        if prefix is None:
            _generate_padded(model, chosen, takers, pad)
        else:
            _generate_shared(model, chosen, takers, pad, prefix)
    return [answer.finished() for answer in answers]


def greedy_config(stops: Collection[int], pad: int, max_new_tokens: int) -> GenerationConfig:
    """Return a generation configuration that leaves nothing but the best token at each step."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stops),
        pad_token_id=pad,
        use_cache=True,
    )


class _Growing:
    """One answer while it is written."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Sequence[int],
        stops: Collection[int],
        limit: int,
    ) -> None:
        self._end = AnswerEnd(tokenizer, prompt)
        self._stops, self._limit = stops, limit
        self._token_ids: list[int] = []
        self._truncated = False

    def take(self, token: int) -> bool:
        """Add a token, or end at a stop; return whether there is more to come."""
        if token in self._stops:
            return False
        self._token_ids.append(token)
        if self._end.reached(self._token_ids):
            return False
        self._truncated = len(self._token_ids) == self._limit
        return not self._truncated

    def finished(self) -> Answer:
        return Answer(tuple(self._token_ids), self._truncated)


def left_padded(prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, (prompts, longest), with the padding on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = (torch.arange(longest)[None] >= longest - lengths[:, None]).long()
    return ids, mask


def _generate_padded(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], takers: Sequence[_Taker], pad: int
) -> None:
    """Hand each row's tokens to its taker until that wants no more, as transformers generates."""
    ids, mask = (tensor.to(model.device) for tensor in left_padded(prompts, pad))
    model.generate(input_ids=ids, attention_mask=mask, stopping_criteria=[_AllTaken(takers)])


class _AllTaken(StoppingCriteria):
    """Ends a row of transformers' generation when its taker wants no more."""

    def __init__(self, takers: Sequence[_Taker]) -> None:
        self._takers = takers
        self._live = [True] * len(takers)

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor | None, **_: object
    ) -> torch.Tensor:
        """Return which rows (rows,) have ended."""
        for row, token in enumerate(input_ids[:, -1].tolist()):
            self._live[row] = self._live[row] and self._takers[row](token)
        return ~torch.tensor(self._live, device=input_ids.device)


def _generate_shared(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    takers: Sequence[_Taker],
    pad: int,
    prefix: SharedPrefix,
) -> None:
    """Hand each row's tokens to its taker until that wants no more; ended rows leave the batch.

    `prefix` is what `model` has computed of all prompts already.
    """
    rests = [prompt[prefix.length :] for prompt in prompts]
    ids, mask = (tensor.to(model.device) for tensor in left_padded(rests, pad))
    mask = torch.cat([mask.new_ones(len(prompts), prefix.length), mask], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, prefix.length :]
    cache = prefix.expanded(len(prompts))
    live = list(takers)
    while True:
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        tokens = logits[:, -1].argmax(dim=1)
        wants = [take(token) for take, token in zip(live, tokens.tolist(), strict=True)]
        kept = [row for row, more in enumerate(wants) if more]
        if not kept:
            return
        if len(kept) < len(live):
            rows = torch.tensor(kept, device=ids.device)
            cache.batch_select_indices(rows)
            tokens, mask, positions = tokens[rows], mask[rows], positions[rows]
            live = [live[row] for row in kept]
        ids = tokens[:, None]
        mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
        positions = positions[:, -1:] + 1


def _batches(prompts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield the indices of each batch; the longest first, so that memory peaks at once."""
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def check_context(base: BaseModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise DataError if the longest prompt and answer do not fit into the model's context."""
    longest = max(map(len, prompts), default=0)
    if base.context is not None and longest + max_new_tokens > base.context:
        raise DataError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the base model's "
            f"context of {base.context}",
            why="no prompt is ever cut",
            fix="lower evaluation.max-new-tokens, use prompt.style = 'compact', or leave such "
            "reports out",
        )
