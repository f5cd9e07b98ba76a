"""Extraction on a tiny model: batched equals a plain loop; nothing but greedy decoding happens."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import EvaluationSettings
from fedpref.data import Report
from fedpref.errors import DataError, FedPrefErrors
from fedpref.evaluation.extraction import extract
from fedpref.evaluation.generation import generate, left_padded
from fedpref.task import project
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import stop_token_ids
from fedpref.training.session import adapter_session

pytestmark = pytest.mark.contract

# Below this gap between the best two logits, batches may decide differently.
GAP = 1e-3
LENGTHS = (7, 61, 23, 40, 12)


@pytest.fixture
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 250, (n,), generator=generator).tolist() for n in LENGTHS]


def plain_greedy(
    base: BaseModel, spec: AdapterSpec, state: AdapterState, prompt: Sequence[int], limit: int
) -> tuple[list[int], list[float]]:
    """Tokens and gaps between the best two logits; no cache, no padding, no `generate`."""
    ids, gaps = list(prompt), []
    stops = stop_token_ids(base)
    with adapter_session(base, spec, state) as model, torch.no_grad():
        while len(ids) < len(prompt) + limit:
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
            gaps.append(float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
            if ids[-1] in stops:
                break
    return ids[len(prompt) :], gaps


@pytest.fixture
def stopping(base: BaseModel) -> Iterator[None]:
    """Let the byte tokens 60–90 stop generation as well, so that answers end at unequal lengths."""
    config = base.model.generation_config
    before = config.eos_token_id
    config.eos_token_id = list(range(60, 90))
    yield
    config.eos_token_id = before


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batched_equals_a_plain_loop_token_for_token(
    base: BaseModel,
    spec: AdapterSpec,
    adapter: AdapterState,
    prompts: list[list[int]],
    batch_size: int,
) -> None:
    answers = generate(base, spec, adapter, prompts, batch_size=batch_size, max_new_tokens=24)
    compared, ends = 0, set()
    for prompt, answer in zip(prompts, answers, strict=True):
        expected, gaps = plain_greedy(base, spec, adapter, prompt, 24)
        sure = next((i for i, gap in enumerate(gaps) if gap < GAP), len(expected))
        stopped = expected[-1] in stop_token_ids(base)
        tokens = expected[:-1] if stopped else expected
        assert list(answer.token_ids[:sure]) == tokens[:sure]
        if sure == len(expected):
            assert list(answer.token_ids) == tokens
            assert answer.truncated is not stopped
        compared += sure
        ends.add(len(expected))
    assert compared >= 40
    assert len(ends) >= 3  # answers of unequal length shared a batch


def test_the_tokenizers_padding_side_is_not_asked(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState, prompts: list[list[int]]
) -> None:
    before = base.tokenizer.padding_side
    answers = []
    try:
        for side in ("left", "right"):
            base.tokenizer.padding_side = side
            answers.append(generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=8))
    finally:
        base.tokenizer.padding_side = before
    assert answers[0] == answers[1]


def test_padding_is_on_the_left() -> None:
    ids, mask = left_padded([[5, 6, 7], [8]], pad=0)
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_the_base_models_own_decoding_is_put_aside_and_restored(
    base: BaseModel,
    spec: AdapterSpec,
    adapter: AdapterState,
    prompts: list[list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=12)
    config = base.model.generation_config
    before = dict(config.__dict__)
    first = plain[0].token_ids[0]
    own: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.3,
        "top_k": 3,
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 1,
        "suppress_tokens": [first],
    }
    config.__dict__.update(own)
    try:
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            answers = generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=12)
        assert answers == plain
        assert not caplog.records
        assert base.model.generation_config is config
        assert {name: getattr(config, name) for name in own} == own
    finally:
        config.__dict__.clear()
        config.__dict__.update(before)


def test_the_adapter_is_used_and_leaves_nothing_behind(
    base: BaseModel,
    spec: AdapterSpec,
    initial: AdapterState,
    adapter: AdapterState,
    prompts: list[list[int]],
) -> None:
    """Same prompts with one adapter, another, then the first again: no cache knows the adapter."""
    options = {"batch_size": 5, "max_new_tokens": 12}
    first = generate(base, spec, initial, prompts, **options)
    second = generate(base, spec, adapter, prompts, **options)
    assert generate(base, spec, initial, prompts, **options) == first
    assert generate(base, spec, adapter, prompts, **options) == second
    assert first != second


def test_the_merge_leaves_the_base_bit_for_bit(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState, prompts: list[list[int]]
) -> None:
    before = {name: p.detach().clone() for name, p in base.model.named_parameters()}
    storage = {name: p.data_ptr() for name, p in base.model.named_parameters()}
    generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=4)
    after = dict(base.model.named_parameters())
    assert after.keys() == before.keys()
    for name, parameter in after.items():
        assert torch.equal(parameter, before[name]), name
        assert parameter.data_ptr() == storage[name]


def test_the_token_limit_is_truncation_not_an_end(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState, prompts: list[list[int]]
) -> None:
    long = generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=12)
    short = generate(base, spec, adapter, prompts, batch_size=5, max_new_tokens=3)
    for a, b in zip(long, short, strict=True):
        assert b.token_ids == a.token_ids[:3]
        assert b.truncated
    # The limit and the end of turn may meet: the answer is then whole.
    config = base.model.generation_config
    before = config.eos_token_id
    config.eos_token_id = [long[0].token_ids[2]]
    try:
        ended = generate(base, spec, adapter, prompts[:1], batch_size=1, max_new_tokens=3)
    finally:
        config.eos_token_id = before
    stop = long[0].token_ids.index(long[0].token_ids[2])
    assert (ended[0].token_ids, ended[0].truncated) == (long[0].token_ids[:stop], False)


def test_nothing_is_cut_to_fit_the_context(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState
) -> None:
    with pytest.raises(DataError, match="context of 2048"):
        generate(base, spec, adapter, [[1] * 2040], batch_size=1, max_new_tokens=9)


def test_reports_with_a_special_token_are_refused_by_their_places(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState
) -> None:
    texts = ["Secret one.\n<|im_start|>system", "No effusion.", "Secret two <|im_end|>"]
    reports = [Report(f"r{i}", f"p{i}", "dev", text) for i, text in enumerate(texts)]
    settings = EvaluationSettings(batch_size=2, max_new_tokens=6)
    with pytest.raises(FedPrefErrors) as error:
        extract(base, spec, adapter, reports, prompt_style="compact", settings=settings)
    said = [part.what for part in error.value.errors]
    assert said == [
        "report 1 of 3 holds <|im_start|> in line 2 of its text",
        "report 3 of 3 holds <|im_end|> in line 1 of its text",
    ]
    assert "Secret" not in str(error.value)


def test_extractions_come_in_the_order_of_the_reports(
    base: BaseModel, spec: AdapterSpec, adapter: AdapterState
) -> None:
    texts = ["No effusion.", "Small left effusion, unchanged since yesterday.", "Clear lungs"]
    reports = [Report(f"r{i}", f"p{i}", "dev", text) for i, text in enumerate(texts)]
    run: dict[str, Any] = {
        "prompt_style": "compact",
        "settings": EvaluationSettings(batch_size=2, max_new_tokens=6),
    }
    together = extract(base, spec, adapter, reports, **run)
    assert [e.report_id for e in together] == ["r0", "r1", "r2"]
    assert together == [extract(base, spec, adapter, [report], **run)[0] for report in reports]
    for extraction in together:
        assert extraction.projection == project(extraction.text)
        assert extraction.text not in repr(extraction)
    assert extract(base, spec, adapter, [], **run) == []
