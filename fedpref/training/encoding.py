"""From messages and responses to token ids, the same for training, reference and generation.

The chat template is rendered to text and tokenized without adding special tokens, so that what a
template writes (also its BOS) is all there is. What would train a model on something that it does
not see when it generates is refused here, before any trainer sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from fedpref.errors import DataError, FedPrefError, ModelError, raise_all
from fedpref.task.ontology import ONTOLOGY, Ontology
from fedpref.task.prompt import PromptStyle
from fedpref.task.prompt import messages as task_messages
from fedpref.training.base_model import BaseModel

Message = dict[str, str]

_PROBE: list[Message] = [
    {"role": "system", "content": "Answer in JSON"},
    {"role": "user", "content": "Probe"},
]
_PROBE_RESPONSE = '{"diseases":[],"findings":[]}'


class PairLike(Protocol):
    """What encoding needs of a preference pair (see fedpref.preference)."""

    @property
    def pair_id(self) -> str: ...  # noqa: D102
    @property
    def report_id(self) -> str: ...  # noqa: D102
    @property
    def chosen(self) -> str: ...  # noqa: D102
    @property
    def rejected(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class EncodedPair:
    """A preference pair as token ids; both responses run through the end of turn."""

    pair_id: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        """The length in tokens of the longer of the two sequences."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, name: str = "the report"
) -> list[int]:
    """Return the token ids of the prompt up to where the model answers, thinking disabled.

    A template that refuses or drops the system role gets its text at the head of the user turn.
    Raises ModelError if there is no usable template or if it yields more than one BOS, and
    DataError if the user's text, there called `name`, holds a special token.
    """
    _check_text(tokenizer, messages, name)
    text, shown = _render(tokenizer, messages)
    ids = _tokenize(tokenizer, text)
    _check_bos(tokenizer, ids, turns=len(shown) + 1)
    return ids


def encode_response(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str
) -> list[int]:
    """Return the token ids of `response` as the answer to `messages`, through the end of turn.

    Raises ModelError unless the prompt's tokens are a prefix of prompt + response and the end of
    turn follows the response exactly once, DataError as `encode_prompt` does.
    """
    _check_text(tokenizer, messages, "the report")
    return _encode(tokenizer, messages, response)[1]


def stop_token_ids(base: BaseModel) -> tuple[int, ...]:
    """Return the ids at which generation has to stop: the template's end of turn, and EOS."""
    stops = {encode_response(base.tokenizer, _PROBE, _PROBE_RESPONSE)[-1]}
    configured = base.model.generation_config.eos_token_id if base.model.generation_config else None
    for ids in (configured, base.tokenizer.eos_token_id):
        stops.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(stops))


def pair_length(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    chosen: str,
    rejected: str,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
) -> int:
    """Return the length in tokens of the longer of prompt + chosen and prompt + rejected."""
    messages = task_messages(text, prompt_style, ontology)
    prompt_ids, *responses = _encode_pair(tokenizer, messages, chosen, rejected, "a report")
    return len(prompt_ids) + max(map(len, responses))


def encode_pairs(
    base: BaseModel,
    pairs: Sequence[PairLike],
    texts_by_report_id: Mapping[str, str],
    *,
    prompt_style: PromptStyle,
    ontology: Ontology = ONTOLOGY,
    max_length: int,
    on_too_long: Literal["error", "drop"] = "error",
) -> tuple[list[EncodedPair], int]:
    """Return the pairs as token ids, in their order, and how many over-long ones were dropped.

    Nothing is ever cut. A pair that needs more than `max_length` tokens, or than the model's
    context holds, is a DataError that names its place, all such at once, unless `on_too_long` is
    "drop". So is one whose report holds a special token, in any case. A place says nothing to
    others; a pair's id, a hash of its text, would confirm a guess.
    """
    limit = max_length if base.context is None else min(max_length, base.context)
    encoded: list[EncodedPair] = []
    refused: list[FedPrefError] = []
    too_long: list[FedPrefError] = []
    for number, pair in enumerate(pairs, 1):
        place = f"pair {number} of {len(pairs)}"
        if pair.report_id not in texts_by_report_id:
            raise DataError(
                f"{place} belongs to no report of this site",
                fix="run `fedpref pairs` again",
            )
        messages = task_messages(texts_by_report_id[pair.report_id], prompt_style, ontology)
        try:
            prompt_ids, chosen_ids, rejected_ids = _encode_pair(
                base.tokenizer, messages, pair.chosen, pair.rejected, f"the report of {place}"
            )
        except DataError as error:
            refused.append(error)
            continue
        item = EncodedPair(pair.pair_id, prompt_ids, chosen_ids, rejected_ids)
        if item.length > limit:
            too_long.append(_too_long(place, item.length, max_length, base.context))
        else:
            encoded.append(item)
    raise_all([*refused, *(too_long if on_too_long == "error" else [])])
    return encoded, len(too_long)


def _too_long(place: str, length: int, max_length: int, context: int | None) -> DataError:
    by_context = context is not None and context < max_length
    higher = "use a base model of a longer context" if by_context else "raise training.max-length"
    return DataError(
        f"{place} needs {length} tokens, the limit is {context if by_context else max_length}",
        why=f"training.max-length is {max_length}, and the base model's context is "
        f"{'not known' if context is None else context}",
        fix=f"{higher}, or set training.on-too-long to 'drop'",
    )


def _encode_pair(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    chosen: str,
    rejected: str,
    name: str,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of prompt, chosen and rejected; `name` is what the report is called."""
    _check_text(tokenizer, messages, name)
    prompt_ids, chosen_ids = _encode(tokenizer, messages, chosen)
    _, rejected_ids = _encode(tokenizer, messages, rejected)
    return tuple(prompt_ids), tuple(chosen_ids), tuple(rejected_ids)


def _encode(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str
) -> tuple[list[int], list[int]]:
    """Return the token ids of the prompt and of the response through its end of turn."""
    prompt_text, shown = _render(tokenizer, messages)
    full_text = _apply(tokenizer, [*shown, {"role": "assistant", "content": response}], open_=False)
    prompt_ids = _tokenize(tokenizer, prompt_text)
    full_ids = _tokenize(tokenizer, full_text)
    _check_bos(tokenizer, full_ids, turns=len(shown) + 1)
    if not full_text.startswith(prompt_text) or full_ids[: len(prompt_ids)] != prompt_ids:
        raise _template_error(
            tokenizer,
            "the prompt's tokens are not a prefix of prompt + response",
            "the model would be trained on a context that it never sees when it generates",
        )
    tail = full_text[len(prompt_text) :]
    if tail.count(response) != 1:
        raise _template_error(
            tokenizer, "the template changes the response", "the response is not found in it as is"
        )
    suffix_ids = _tokenize(tokenizer, tail[tail.index(response) + len(response) :])
    specials = _special_ids(tokenizer)
    end = next((token for token in suffix_ids if token in specials), tokenizer.eos_token_id)
    if not isinstance(end, int):
        raise _template_error(
            tokenizer, "the template writes no end of turn", "and the tokenizer has no EOS token"
        )
    response_ids = full_ids[len(prompt_ids) :]
    # A template that leaves the last turn open is closed by EOS, at which generation stops.
    response_ids = (
        response_ids[: response_ids.index(end) + 1] if end in response_ids else [*response_ids, end]
    )
    written = str(
        tokenizer.decode(
            response_ids[:-1], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )
    if written.strip() != response.strip():
        raise _template_error(
            tokenizer,
            "the response's tokens do not decode to the response and one end of turn",
            "an end-of-turn token inside the response, or other text before its end of turn",
        )
    return prompt_ids, response_ids


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> tuple[str, list[Message]]:
    """Return the prompt's text and the messages as the template takes them."""
    given = [dict(message) for message in messages]
    if tokenizer.chat_template is None:
        raise _template_error(
            tokenizer, "the tokenizer has no chat template", "the task is asked as chat messages"
        )
    try:
        text = _apply(tokenizer, given, open_=True)
        if all(message["content"].strip() in text for message in given):
            return text, given
    except TemplateError:
        if given[0]["role"] != "system":
            raise _template_error(
                tokenizer, "the chat template cannot be rendered", "it refuses the messages"
            ) from None
    system, user, *rest = given
    folded = [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]
    try:
        text = _apply(tokenizer, folded, open_=True)
    except TemplateError:
        text = ""
    if not all(message["content"].strip() in text for message in folded):
        raise _template_error(
            tokenizer,
            "the chat template loses a part of the prompt",
            "neither a system message nor the same text in the user turn reaches the model whole",
        )
    return text, folded


def _apply(tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, open_: bool) -> str:
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=open_, enable_thinking=False
    )
    return str(text)


def _tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _check_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], name: str) -> None:
    """Raise DataError if a user message holds what the tokenizer reads as a special token.

    Such a text would end its turn, or open another, wherever it likes.
    """
    specials = _special_ids(tokenizer)
    for text in (message["content"] for message in messages if message["role"] == "user"):
        for token_id in _tokenize(tokenizer, text):
            token = tokenizer.convert_ids_to_tokens(token_id) if token_id in specials else None
            # The unknown token also stands for characters that the vocabulary lacks.
            if token is None or (token_id == tokenizer.unk_token_id and token not in text):
                continue
            line = text[: max(text.find(token), 0)].count("\n") + 1
            raise DataError(
                f"{name} holds {token} in line {line} of its text",
                why="the base model's tokenizer reads it as a special token, which only the chat "
                "template may write",
                fix="take it out of the report, or leave the report out",
            )


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids that only a template may write."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    specials = added | set(tokenizer.all_special_ids)
    pad, ends = tokenizer.pad_token_id, {tokenizer.bos_token_id, tokenizer.eos_token_id}
    # Some tokenizers pad with an ordinary character, such as "!".
    return specials - {pad} if pad not in ends and len(tokenizer.pad_token or "") == 1 else specials


def _check_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int], *, turns: int) -> None:
    """Raise ModelError on a second BOS; `turns` counts the messages and the answer's own turn."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return
    # Where BOS also ends a turn, or is the marker that opens each one (SmolLM2, whose template has
    # it in its text), only a doubled start is a fault. A `bos_token` in the template is a BOS.
    marks_turns = ids.count(bos) == turns and "bos_token" not in str(tokenizer.chat_template)
    shared = bos == tokenizer.eos_token_id or marks_turns
    if ids[:2] == [bos, bos] or (not shared and ids.count(bos) > 1):
        raise _template_error(
            tokenizer,
            f"the rendered messages hold {ids.count(bos)} BOS tokens",
            "a model is trained with at most one",
        )


def _template_error(tokenizer: PreTrainedTokenizerBase, what: str, why: str) -> ModelError:
    return ModelError(
        what,
        why=why,
        fix="correct the tokenizer's chat_template, or use another base model",
        file=f"chat template of {tokenizer.name_or_path or type(tokenizer).__name__}",
    )
