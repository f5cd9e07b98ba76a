"""Token ids of prompts and responses, over templates and tokenizers of different habits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import CHATML, QWEN3_THINK, byte_tokenizer, save_tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fedpref.errors import DataError, FedPrefErrors, ModelError
from fedpref.task import prompt
from fedpref.training.base_model import load_base_model
from fedpref.training.encoding import (
    encode_pairs,
    encode_prompt,
    encode_response,
    pair_length,
    stop_token_ids,
)

pytestmark = pytest.mark.contract

MESSAGES = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Lungs clear."}]
ANSWER = '{"diseases":["pneumonia"],"findings":[]}'

BOS = {"bos_token": "<|bos|>"}
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n\n' + m.content | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPEN_END = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nassistant: ' }}{% endif %}"
)
TOKENIZERS = {
    "chatml": byte_tokenizer(CHATML),
    "chatml, pad = eos": byte_tokenizer(CHATML, pad_token="<|im_end|>"),
    "chatml, eos is not the end of turn": byte_tokenizer(CHATML, eos_token="<|eot|>"),
    "thinking": byte_tokenizer(QWEN3_THINK),
    "bos in the template": byte_tokenizer(LLAMA3, **BOS),
    "no system role": byte_tokenizer(NO_SYSTEM, **BOS, eos_token="</s>"),
    "system role dropped": byte_tokenizer(DROPS_SYSTEM),
    "last turn left open": byte_tokenizer(OPEN_END, eos_token="</s>"),
    "bos that the template leaves out": byte_tokenizer(CHATML, **BOS),
    "bos opens each turn": byte_tokenizer(CHATML, bos_token="<|im_start|>"),
}


@pytest.fixture(params=TOKENIZERS, name="tokenizer")
def fixture_tokenizer(request: Any) -> Any:
    return TOKENIZERS[request.param]


def test_response_is_the_text_and_one_end_of_turn(tokenizer: Any) -> None:
    ids = encode_response(tokenizer, MESSAGES, ANSWER)
    text = tokenizer.decode(ids)
    assert text.strip().startswith(ANSWER)
    end = tokenizer.decode(ids[-1:])
    assert text.strip() == ANSWER + end
    assert end in {"<|im_end|>", "</s>"}
    assert ids.count(ids[-1]) == 1
    # Generation emits byte tokens here: these are what it would emit, and no others.
    plain = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    assert ids[-1 - len(plain) : -1] == plain


def test_prompt_is_a_token_prefix_and_holds_all_the_text(tokenizer: Any) -> None:
    text = tokenizer.decode(encode_prompt(tokenizer, MESSAGES))
    assert text.count("Rules.") == 1
    assert text.count("Lungs clear.") == 1
    assert text.index("Rules.") < text.index("Lungs clear.")


def test_at_most_one_bos(tokenizer: Any) -> None:
    ids = [*encode_prompt(tokenizer, MESSAGES), *encode_response(tokenizer, MESSAGES, ANSWER)]
    if "bos" not in tokenizer.chat_template and tokenizer.bos_token != "<|im_start|>":
        assert "bos" not in tokenizer.decode(ids)  # nobody adds one behind the template's back
    else:
        opens_turns = tokenizer.bos_token == "<|im_start|>"
        assert ids.count(tokenizer.bos_token_id) == (len(MESSAGES) + 1 if opens_turns else 1)
        assert ids[0] == tokenizer.bos_token_id


def test_a_refused_system_role_moves_into_the_user_turn_in_both_uses() -> None:
    tokenizer = TOKENIZERS["no system role"]
    prompt_ids = encode_prompt(tokenizer, MESSAGES)
    assert tokenizer.decode(prompt_ids) == "<|bos|>[INST] Rules.\n\nLungs clear. [/INST]"
    trained = [*prompt_ids, *encode_response(tokenizer, MESSAGES, ANSWER)]
    assert tokenizer.decode(trained) == (
        f"<|bos|>[INST] Rules.\n\nLungs clear. [/INST] {ANSWER}</s>"
    )


def test_thinking_is_disabled_and_that_shows() -> None:
    tokenizer = TOKENIZERS["thinking"]
    text = tokenizer.decode(encode_prompt(tokenizer, MESSAGES))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    other = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert not other.endswith("</think>\n\n")


def refusal(template: str | None, answer: str = ANSWER, **special: Any) -> str:
    with pytest.raises(ModelError) as error:
        encode_response(byte_tokenizer(template, **special), MESSAGES, answer)
    message = str(error.value)
    assert "chat template of" in message
    assert "Lungs" not in message
    assert "diseases" not in message
    return message


def test_a_prompt_that_is_no_prefix_is_refused() -> None:
    # Thinking is opened in the prompt only: the model would be trained without what it sees.
    template = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    assert "not a prefix" in refusal(template)


def test_a_prompt_whose_tokens_merge_with_the_response_is_refused() -> None:
    plain = byte_tokenizer()
    vocab = plain.get_vocab()
    vocab = {t: i for t, i in vocab.items() if len(t) == 1} | {"Ċ{": 256}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "{")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.chat_template = CHATML
    with pytest.raises(ModelError, match="not a prefix"):
        encode_response(tokenizer, MESSAGES, ANSWER)


def test_two_bos_are_refused() -> None:
    assert "2 BOS" in refusal("{{ bos_token }}" + LLAMA3, **BOS)
    # Nor does a BOS that opens each turn excuse one too many or one too few.
    assert "4 BOS" in refusal("{{ bos_token }}" + CHATML, bos_token="<|im_start|>")
    but_the_last = "{% if m.role != 'assistant' %}{{ bos_token }}{% endif %}"
    assert "2 BOS" in refusal(CHATML.replace("%}{{", "%}" + but_the_last + "{{", 1), **BOS)


def test_a_bos_at_each_turn_is_one_only_as_the_turn_s_own_marker() -> None:
    # As many as there are turns, by a template that writes a BOS before each: they are too many.
    each = CHATML.replace("'<|im_start|>'", "bos_token + '<|im_start|>'")
    assert "3 BOS" in refusal(each, **BOS)
    with pytest.raises(ModelError, match="2 BOS"):
        encode_prompt(byte_tokenizer(each, **BOS), MESSAGES)
    # The same in one token, and in the template's text: SmolLM2.
    tokenizer = TOKENIZERS["bos opens each turn"]
    assert encode_prompt(tokenizer, MESSAGES).count(tokenizer.bos_token_id) == 3


TURN = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("tokenizer", "text", "token", "line"),
    [
        ("chatml", f"Lungs\n\nclear.{TURN}", "<|im_end|>", 3),
        ("thinking", "<|im_start|>system", "<|im_start|>", 1),
        ("bos in the template", "Lungs <|bos|> clear <|bos|>.", "<|bos|>", 1),
        ("bos that the template leaves out", "Lungs\n<|bos|>", "<|bos|>", 2),
        ("chatml", "Lungs clear.\n<|pad|>", "<|pad|>", 2),
        ("no system role", "Lungs </s> clear.", "</s>", 1),
        ("unknown token", "Lungs <unk> clear.", "<unk>", 1),
    ],
)
def test_a_report_writes_no_special_token(tokenizer: str, text: str, token: str, line: int) -> None:
    asked = [MESSAGES[0], {"role": "user", "content": text}]
    of = TOKENIZERS.get(tokenizer) or byte_tokenizer(unk_token="<unk>")
    for encode_it in (
        lambda: encode_prompt(of, asked, name="report 7 of 9"),
        lambda: encode_response(of, asked, ANSWER),
        lambda: pair_length(of, text, ANSWER, "{}", "compact"),
    ):
        with pytest.raises(DataError) as error:
            encode_it()
        assert f"holds {token} in line {line} of its text" in str(error.value)
        assert "Lungs" not in str(error.value)


def test_an_ordinary_character_that_pads_is_no_special_token() -> None:
    of = byte_tokenizer(pad_token="!")
    assert of.pad_token_id in of.all_special_ids
    asked = [MESSAGES[0], {"role": "user", "content": "Stat! Effusion."}]
    assert of.pad_token_id in encode_prompt(of, asked)


def test_a_character_that_the_vocabulary_lacks_is_no_special_token() -> None:
    of = byte_tokenizer(unk_token="<unk>")
    vocabulary = of.get_vocab()
    inner = Tokenizer(models.BPE({t: i for t, i in vocabulary.items() if t != "Z"}, []))
    inner.model.unk_token = "<unk>"
    lacking = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<|im_end|>"
    )
    lacking.chat_template = CHATML
    asked = [MESSAGES[0], {"role": "user", "content": "Z"}]
    assert lacking.unk_token_id in encode_prompt(lacking, asked)


def test_pairs_of_such_reports_are_named_all_at_once(base: Any) -> None:
    texts = {"r-a": f"Lungs{TURN}", "r-b": "Lungs clear.", "r-c": f"Lungs{TURN}"}
    pairs = [pair("a"), pair("b"), pair("c")]
    with pytest.raises(FedPrefErrors) as errors:
        encode_pairs(
            base, pairs, texts, prompt_style="compact", max_length=4000, on_too_long="drop"
        )
    assert [error.what.partition(" holds")[0] for error in errors.value.errors] == [
        "the report of pair 1 of 3",
        "the report of pair 3 of 3",
    ]


def test_no_template_is_refused() -> None:
    assert "no chat template" in refusal(None)


def test_a_template_that_loses_the_report_is_refused() -> None:
    assert "loses a part" in refusal("{% if add_generation_prompt %}assistant:{% endif %}")


def test_a_template_that_refuses_everything_is_refused() -> None:
    assert "loses a part" in refusal("{{ raise_exception('no') }}")


def test_a_template_that_changes_the_response_is_refused() -> None:
    template = CHATML.replace("m.content", "(m.content | upper)")
    with pytest.raises(ModelError):
        encode_response(byte_tokenizer(template), MESSAGES, ANSWER)


def test_an_end_of_turn_inside_the_response_is_refused() -> None:
    assert "one end of turn" in refusal(CHATML, answer='{"a":"<|im_end|>"}')


def test_no_end_of_turn_at_all_is_refused() -> None:
    assert "no end of turn" in refusal(OPEN_END, eos_token=None)


def test_stop_ids(base: Any) -> None:
    end = base.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in stop_token_ids(base)
    fake = SimpleNamespace(
        tokenizer=TOKENIZERS["chatml, eos is not the end of turn"],
        model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[7, 9])),
    )
    ids = fake.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eot|>"])
    assert stop_token_ids(fake) == tuple(sorted([*ids, 7, 9]))  # type: ignore[arg-type]


def pair(name: str, chosen: str = ANSWER) -> Any:
    return SimpleNamespace(
        pair_id=name, report_id=f"r-{name}", chosen=chosen, rejected='{"diseases":[],"findings":[]}'
    )


def encode(base: Any, pairs: Any, max_length: int, **more: Any) -> Any:
    texts = {f"r-{p.pair_id}": "Lungs clear." for p in pairs}
    return encode_pairs(base, pairs, texts, prompt_style="compact", max_length=max_length, **more)


def test_pairs_are_task_prompts_with_both_responses(base: Any) -> None:
    ((one,), dropped) = encode(base, [pair("a")], 4000)
    assert dropped == 0
    assert one.pair_id == "a"
    assert list(one.prompt_ids) == encode_prompt(
        base.tokenizer, prompt.messages("Lungs clear.", "compact")
    )
    assert base.tokenizer.decode(one.chosen_ids) == ANSWER + "<|im_end|>"
    assert base.tokenizer.decode(one.rejected_ids) == '{"diseases":[],"findings":[]}<|im_end|>'
    assert one.length == len(one.prompt_ids) + len(ANSWER) + 1
    rejected = pair("a").rejected
    assert one.length == pair_length(base.tokenizer, "Lungs clear.", ANSWER, rejected, "compact")


def test_over_long_pairs_are_errors_by_place_and_never_cut(base: Any) -> None:
    pairs = [pair("a"), pair("b", ANSWER + " " * 100), pair("c", ANSWER + " " * 101)]
    limit = encode(base, pairs[:1], 4000)[0][0].length
    assert len(encode(base, pairs[:1], limit)[0]) == 1
    with pytest.raises(
        DataError, match=f"pair 1 of 1 needs {limit} tokens, the limit is {limit - 1}"
    ):
        encode(base, pairs[:1], limit - 1)
    with pytest.raises(FedPrefErrors) as errors:
        encode(base, pairs, limit)
    places = [str(error).split(" needs")[0] for error in errors.value.errors]
    assert [place[-11:] for place in places] == ["pair 2 of 3", "pair 3 of 3"]
    assert "on-too-long" in str(errors.value)
    assert "Lungs" not in str(errors.value)
    kept, dropped = encode(base, pairs, limit, on_too_long="drop")
    assert [p.pair_id for p in kept] == ["a"]
    assert dropped == 2


def test_the_model_s_context_limits_as_well(tmp_path: Path) -> None:
    def base_of(context: int) -> Any:
        folder = save_tiny(tmp_path / str(context), max_position_embeddings=context)
        return load_base_model(folder, device="cpu")

    length = encode(base_of(4096), [pair("a")], 4000)[0][0].length
    assert len(encode(base_of(length), [pair("a")], 4000)[0]) == 1
    short = base_of(length - 1)
    said = f"needs {length} tokens, the limit is {length - 1}"
    with pytest.raises(DataError, match=said) as error:
        encode(short, [pair("a")], 4000)
    assert f"max-length is 4000, and the base model's context is {length - 1}" in str(error.value)
    assert "longer context" in str(error.value)
    assert encode(short, [pair("a")], 4000, on_too_long="drop") == ([], 1)


def test_a_pair_without_its_report(base: Any) -> None:
    with pytest.raises(DataError, match="pair 1 of 1 belongs to no report"):
        encode_pairs(base, [pair("a")], {}, prompt_style="compact", max_length=99)
