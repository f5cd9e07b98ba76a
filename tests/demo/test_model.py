import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedpref import demo
from fedpref.demo.cases import annotation, sample_case
from fedpref.demo.generate import sample_report
from fedpref.demo.pretrain import answers, evaluate
from fedpref.demo.styles import STYLES
from fedpref.demo.tokenizer import END
from fedpref.task import ONTOLOGY, messages, project, prompt_digest

MODEL = Path(demo.__file__).parent / "model"


@cache
def shipped_tokenizer():
    return AutoTokenizer.from_pretrained(MODEL, local_files_only=True)


@pytest.fixture(scope="module")
def tokenizer():
    return shipped_tokenizer()


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(
        MODEL, local_files_only=True, dtype=torch.float32
    ).eval()


def prompt(tokenizer, text, **options):
    return tokenizer.apply_chat_template(
        messages(text, "compact"), add_generation_prompt=True, tokenize=False, **options
    )


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(st.text())
def test_any_text_comes_back(text):
    tokenizer = shipped_tokenizer()
    assert tokenizer.decode(ids(tokenizer, text)) == text


@given(st.text(), st.text())
def test_the_prompt_is_a_token_prefix_of_prompt_and_response(text, response):
    tokenizer = shipped_tokenizer()
    before = prompt(tokenizer, text)
    turns = [*messages(text, "compact"), {"role": "assistant", "content": response}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert whole == f"{before}{response}{END}\n"
    start = ids(tokenizer, before)
    assert ids(tokenizer, whole)[: len(start)] == start


def test_special_tokens_and_thinking_switch(tokenizer):
    assert tokenizer.eos_token == END
    assert tokenizer.pad_token_id not in {None, tokenizer.eos_token_id}
    assert tokenizer.bos_token is None
    assert prompt(tokenizer, "x", enable_thinking=False) == prompt(tokenizer, "x")
    assert ids(tokenizer, "<|im_end|>") == [tokenizer.eos_token_id]


def test_names_and_prompt_lines_are_single_tokens(tokenizer):
    answer = annotation(sample_case(np.random.default_rng(5))).to_json()
    assert len(ids(tokenizer, answer)) < 60
    assert len(ids(tokenizer, prompt(tokenizer, ""))) < 40
    for name in (*ONTOLOGY.diseases, *ONTOLOGY.locations):
        assert len(ids(tokenizer, f'"{name}"')) <= 3, name


def test_the_files_are_small_and_the_record_belongs_to_this_prompt():
    size = sum(path.stat().st_size for path in MODEL.iterdir())
    assert size <= 8 * 2**20
    record = json.loads((MODEL / "TRAINING.json").read_text(encoding="utf-8"))
    assert record["prompt_digest"] == prompt_digest("compact"), "train the demo model again"
    assert record["dev"]["strict"] > 0.95


def test_the_model_is_a_small_qwen3_that_takes_long_reports(model):
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings >= 4096
    assert sum(parameter.numel() for parameter in model.parameters()) < 4_000_000


@pytest.mark.contract
def test_the_answer_is_nearly_always_valid_and_often_right(model, tokenizer):
    rng = np.random.default_rng(7)
    reports = [sample_report(rng, style) for style in STYLES for _ in range(10)]
    measured = evaluate(model, tokenizer, reports)
    assert measured["strict"] >= 0.95
    assert measured["location_disease_f1"] > 0.35


@pytest.mark.contract
def test_text_of_any_kind_is_survived(model, tokenizer):
    texts = ["", "{", "ﷺ" * 50, "No findings. " * 200, '{"diseases":[],"findings":[]}']
    assert len([project(text) for text in answers(model, tokenizer, texts)]) == len(texts)
