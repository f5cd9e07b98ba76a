"""An answer ends early only where nothing to come could change its projection."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fedpref.evaluation.answer_end import AnswerEnd, answer_text
from fedpref.task import project

WHOLE = '{"diseases":["pneumonia"],"findings":[]}'
EMPTY = '{"diseases":[],"findings":[]}'
BYTES = byte_tokenizer()


def merged_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level tokens, some of more than one character, as larger vocabularies have them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("]", "}"), ("}", "}"), ("}", "Ċ"), ("]}", "Ċ"), ("{", '"'), ("}", "â"), ("Ċ", "Ċ")]
    tokens = alphabet + [left + right for left, right in merges]
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(tokens)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Characters, and a token for each byte, whose runs decode as a whole or not at all."""
    tokens = [chr(code) for code in range(10, 127)] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: i for i, token in enumerate(["<unk>", *tokens])}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


# Bytes and their names in byte-level vocabularies: of E2 80 A8, a white space; of an emoji; others.
LONE_BYTES = {
    0xE2: "â",
    0x80: "Ģ",
    0xA8: "¨",
    0xF0: "ð",
    0x9F: "Ł",
    0xFF: "ÿ",
    0x7D: "}",
    0x20: "Ġ",
}
TOKENIZERS = {"bytes": BYTES, "merged": merged_tokenizer(), "fallback": fallback_tokenizer()}


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def ended(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], prompt: Sequence[int] = ()
) -> list[int]:
    """The tokens that are generated of those that the model would write."""
    end = AnswerEnd(tokenizer, prompt)
    count = next((n for n in range(1, len(ids) + 1) if end.reached(ids[:n])), len(ids))
    return list(ids[:count])


@pytest.mark.parametrize(
    ("written", "generated"),
    [
        (WHOLE, WHOLE),
        (WHOLE + " \n\u2028 ", WHOLE + " \n\u2028 "),  # white space alone leaves it strict
        (WHOLE + "\n\nThe report", WHOLE + "\n\nT"),
        (WHOLE + WHOLE, WHOLE + "{"),
        ("```json\n" + WHOLE + "\n```", "```json\n" + WHOLE),  # was not strict before it closed
        ("The set {a} and {b}: " + WHOLE + "x", "The set {a} and {b}: " + WHOLE),
        ('{"a":"}","b":"\\"}"} tail', '{"a":"}","b":"\\"}"}'),  # closed, and refused
        (
            '{"diseases":[],"diseases":[],"findings":[]}{',
            '{"diseases":[],"diseases":[],"findings":[]}',
        ),
        ('{"diseases":["' + "}" * 9, '{"diseases":["' + "}" * 9),  # a string that never ends
        ("<think>{}</think>" + WHOLE + " tail", "<think>{}</think>" + WHOLE + " tail"),
        (WHOLE + "</think>" + EMPTY, WHOLE + "<"),  # bytes: the tag is not yet seen
        ("no object at all", "no object at all"),
    ],
)
def test_by_hand(written: str, generated: str) -> None:
    assert answer_text(BYTES, ended(BYTES, ids_of(BYTES, written))) == generated


def test_a_tag_that_is_one_token_is_seen() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    ids = ids_of(tokenizer, WHOLE + "</think>" + EMPTY)
    assert ended(tokenizer, ids) == ids


def test_a_thinking_block_that_the_prompt_opens() -> None:
    ids = ids_of(BYTES, "Perhaps " + EMPTY + "? No.</think>" + WHOLE)
    assert ended(BYTES, ids, ids_of(BYTES, "<|im_start|>assistant\n<think>\n")) == ids
    closed = ids_of(BYTES, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert ended(BYTES, ids, closed) == ids_of(BYTES, "Perhaps " + EMPTY)


def test_an_output_that_is_no_token() -> None:
    ids = [*ids_of(BYTES, WHOLE), 100_000]
    assert ended(BYTES, ids) == ids


PIECES = st.sampled_from(
    [
        WHOLE, EMPTY, "{}", "{", "}", "[", "]", '"', "\\", '\\"', "\\u007d", ":", ",", "a", "1",
        " ", "\n", "\u2028", "\u00a0", "é", "病", "😀", "\ufffd", "{a}", '{"a":1}', '{"a":1,"a":2}',
        '{"a":NaN}', '{"diseases":{},"findings":[]}', '{"diseases":[], "findings":["}"]}',
        "```json\n", "<think>", "</think>", "<", "think>", "The answer is ",
        "[" * 101, '{"a":' * 101,
    ]
)  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.lists(PIECES, max_size=12).map("".join))
@example(text=WHOLE + "\u2028" + WHOLE)
@settings(deadline=None, max_examples=100)
def test_the_projection_is_that_of_all_the_model_would_write(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert_same_projection(tokenizer, ids_of(tokenizer, text))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_whatever_bytes_are_mixed_in(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    broken = st.lists(st.integers(0, len(tokenizer) - 1), max_size=3)
    name_of = "<0x{:02X}>".format if name == "fallback" else LONE_BYTES.__getitem__
    lone = st.sampled_from(list(LONE_BYTES)).map(
        lambda byte: [tokenizer.convert_tokens_to_ids(name_of(byte))]
    )
    parts = data.draw(
        st.lists(PIECES.map(lambda p: ids_of(tokenizer, p)) | broken | lone, max_size=10)
    )
    assert_same_projection(tokenizer, [token for part in parts for token in part])


def assert_same_projection(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> None:
    kept = ended(tokenizer, ids)
    text, full = answer_text(tokenizer, kept), answer_text(tokenizer, ids)
    if len(kept) < len(ids) and re.search("</?think>", full):
        # The one difference: the first tag comes behind the object and what shows that the model
        # goes on. The answer is then what stood there before it.
        assert not re.search("</?think>", text)
        full = full[: max(len(text), full.index("think>"))]
    assert project(text) == project(full)
