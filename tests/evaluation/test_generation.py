"""Batched generation equals one by one on every family of models, whatever a batch's layout is."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import COMMON, KINDS, WINDOW
from tiny_models import byte_tokenizer
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from fedpref.demo import DEMO_MODEL
from fedpref.evaluation.answer_end import answer_text
from fedpref.evaluation.generation import Answer, greedy_answers
from fedpref.evaluation.shared_prefix import SharedPrefix, allows_gaps, common_prefix
from fedpref.task import project
from fedpref.task.prompt import messages
from fedpref.training.base_model import load_base_model
from fedpref.training.encoding import encode_prompt, stop_token_ids

pytestmark = pytest.mark.contract

GAP = 1e-3  # between the best two logits; below it, batches may decide differently
STOPS = tuple(range(60, 90))
LIMIT = 16
TOKENIZER = byte_tokenizer()
SMALL: dict[str, Any] = COMMON | {
    "vocab_size": len(TOKENIZER),
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LONG_ROPE: dict[str, Any] = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "factor": 8.0,
    },
}
# What shares a prefix, what is padded on the left alone, what takes no padding at all.
SHARED: dict[str, Any] = {
    "qwen3": Qwen3Config(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "llama": LlamaConfig(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "mistral, window longer than all": MistralConfig(**SMALL, sliding_window=400),
    "gemma": GemmaConfig(**SMALL),
    "gpt2": GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4, n_positions=512),
}
WINDOWED: dict[str, Any] = {
    "mistral, window": MistralConfig(**SMALL, **WINDOW),
    "gemma3, window": Gemma3TextConfig(
        **SMALL, **WINDOW, query_pre_attn_scalar=8, layer_types=KINDS
    ),
    "gemma2, window": Gemma2Config(
        **SMALL, **WINDOW, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "qwen3, window": Qwen3Config(
        **SMALL, **WINDOW, use_sliding_window=True, layer_types=KINDS, max_window_layers=0
    ),
}
OTHERS: dict[str, Any] = {
    "lfm2, convolutions": Lfm2Config(
        **SMALL, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False
    ),
    "bloom, no position ids": BloomConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, n_layer=2, n_head=4
    ),
    "phi3, rotation by the longest": Phi3Config(**SMALL, **LONG_ROPE),
}


def make_model(config: Any) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        # The default 0.02 leaves a tiny model with nearly uniform predictions.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.2)
    return model


def make_prompts(lengths: Sequence[int] = (7, 61, 23, 40, 12), shared: int = 30) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 250, (count,), generator=generator).tolist()

    prefix = ids(shared)
    return [prefix + ids(length) for length in lengths]


def plain(
    model: PreTrainedModel, prompt: Sequence[int], stops: Sequence[int], limit: int
) -> tuple[list[int], list[float]]:
    """Tokens and gaps between the best two logits, of one prompt, without cache and padding."""
    new: list[int] = []
    gaps: list[float] = []
    while len(new) < limit:
        ids = torch.tensor([[*prompt, *new]])
        best = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        new.append(int(best.indices[0]))
        if new[-1] in stops:
            break
    return new, gaps


def assert_as_plain(
    model: PreTrainedModel,
    prompts: list[list[int]],
    *batched: list[Answer],
    stops: Sequence[int] = STOPS,
    limit: int = LIMIT,
) -> int:
    """Compare up to the first place where the model is unsure; return the tokens compared."""
    compared = 0
    for prompt, *answers in zip(prompts, *batched, strict=True):
        new, gaps = plain(model, prompt, stops, limit)
        sure = next((place for place, gap in enumerate(gaps) if gap < GAP), len(new))
        stopped = new[-1] in stops
        expected = new[:-1] if stopped else new
        for answer in answers:
            assert list(answer.token_ids[:sure]) == expected[:sure]
            if sure == len(new):
                assert answer == Answer(tuple(expected), truncated=not stopped)
        compared += sure
    return compared


def answers_of(model: PreTrainedModel, prompts: list[list[int]], batch_size: int) -> list[Answer]:
    return greedy_answers(
        model, TOKENIZER, prompts, stops=STOPS, batch_size=batch_size, max_new_tokens=LIMIT
    )


@pytest.mark.parametrize("family", SHARED | WINDOWED | OTHERS)
@torch.inference_mode()
def test_batches_equal_one_by_one(family: str) -> None:
    model = make_model((SHARED | WINDOWED | OTHERS)[family])
    prompts = make_prompts()
    assert allows_gaps(model, 115) is (family in SHARED)
    answers = [answers_of(model, prompts, batch_size) for batch_size in (2, 5)]
    assert assert_as_plain(model, prompts, *answers) >= 5


@pytest.mark.parametrize("family", SHARED | WINDOWED)
@torch.inference_mode()
def test_a_gap_is_right_where_it_is_allowed_and_only_there(family: str) -> None:
    """One forward, no cache: the prompt as it is, and with 20 tokens of padding in its middle."""
    model = make_model((SHARED | WINDOWED)[family])
    prompt = make_prompts((10,))[0]
    right = model(input_ids=torch.tensor([prompt]), logits_to_keep=1).logits
    gapped = model(
        input_ids=torch.tensor([[*prompt[:30], *[0] * 20, *prompt[30:]]]),
        attention_mask=torch.tensor([[1] * 30 + [0] * 20 + [1] * 10]),
        position_ids=torch.tensor([[*range(30), *[0] * 20, *range(30, 40)]]),
        logits_to_keep=1,
    ).logits
    difference = float((gapped - right).abs().max())
    assert difference < 1e-4 if family in SHARED else difference > 0.1


@torch.inference_mode()
def test_the_prefix_is_computed_once() -> None:
    model = make_model(SHARED["qwen3"])
    prompts = make_prompts()
    widths = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: widths.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    try:
        answers = answers_of(model, prompts, 2)
    finally:
        handle.remove()
    assert widths[0] == (1, 30)
    assert [shape for shape in widths[1:] if shape[1] > 1] == [(2, 61), (2, 23), (1, 7)]
    # As many steps as the longest answer of each batch needs, and each in fewer rows than before.
    sizes = [len(answer.token_ids) + (not answer.truncated) for answer in answers]
    assert sum(shape[0] for shape in widths[1:]) == sum(sizes)


@torch.inference_mode()
def test_room_in_the_cache_is_enlarged() -> None:
    """Answers longer than the room, in rows that leave at different times."""
    model = make_model(SHARED["llama"])
    prompts = make_prompts((3, 9, 5), shared=8)
    answers = greedy_answers(model, TOKENIZER, prompts, stops=[1], batch_size=3, max_new_tokens=40)
    assert assert_as_plain(model, prompts, answers, stops=[1], limit=40) > 60
    cache = SharedPrefix(model, prompts[0][:8]).expanded(3)
    assert cache.get_seq_length() == 8


@torch.inference_mode()
def test_equal_prompts_and_a_single_one() -> None:
    model = make_model(SHARED["qwen3"])
    prompt = make_prompts((4,))[0]
    alone = answers_of(model, [prompt], 1)
    assert answers_of(model, [prompt] * 3, 2) == alone * 3
    assert_as_plain(model, [prompt], alone)
    # Nothing in common, and a prompt that is the beginning of another.
    prompts = [[5, 6, 7], [8, 9], [5]]
    assert_as_plain(model, prompts, answers_of(model, prompts, 3))
    prompts = [prompt[:3], prompt]
    assert_as_plain(model, prompts, answers_of(model, prompts, 2))


def test_common_prefix_by_hand() -> None:
    assert common_prefix([[1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 5]]) == [1, 2]
    assert common_prefix([[1, 2], [1, 2, 3]]) == [1]  # a token is left of each
    assert common_prefix([[1, 2], [1, 2]]) == [1]
    assert common_prefix([[1], [2]]) == []
    for prompts in itertools.permutations([[3, 1, 1], [3, 1, 2], [3, 1, 0, 4]]):
        assert common_prefix(prompts) == [3, 1]


REPORTS = (
    "No pleural effusion or pneumothorax. Heart size is normal.",
    "Small left pleural effusion with adjacent atelectasis.",
    "There is a right lower lobe consolidation, concerning for pneumonia. No edema.",
    "Stable cardiomegaly.",
    "Bilateral hazy opacities. No effusion. The mediastinal contours are unremarkable, unchanged.",
    "Lungs are clear.",
)


@torch.inference_mode()
def test_the_demo_model_on_reports() -> None:
    base = load_base_model(DEMO_MODEL, device="cpu")
    prompts = [encode_prompt(base.tokenizer, messages(text, "compact")) for text in REPORTS]
    stops = stop_token_ids(base)
    before = base.model.generation_config
    try:
        answers, endless = (
            greedy_answers(
                base.model,
                base.tokenizer,
                prompts,
                stops=ends,
                batch_size=4,
                max_new_tokens=96,
            )
            for ends in (stops, ())
        )
    finally:
        base.model.generation_config = before
    assert assert_as_plain(base.model, prompts, answers, stops=stops, limit=96) > 40
    for answer, longer in zip(answers, endless, strict=True):
        text = answer_text(base.tokenizer, answer.token_ids)
        assert project(text).strict
        # Without a stop, the token behind the object ends the answer and stays in it.
        assert longer.token_ids[:-1] == answer.token_ids
        assert longer.token_ids[-1] in stops
        assert not longer.truncated
        assert not project(answer_text(base.tokenizer, longer.token_ids)).strict
