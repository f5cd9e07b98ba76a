"""After a session nothing of it is left: on the model, in the process, in memory."""

from __future__ import annotations

import gc
import math
import os
import random
import resource
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import LORA, SETTINGS, make_pairs, save_tiny, with_settings
from transformers import Trainer

from fedpref.adapter_state import initial_state, state_digest
from fedpref.config import LoraSettings
from fedpref.errors import TrainingError
from fedpref.evaluation.generation import generate
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.session import adapter_session, model_session
from fedpref.training.sft import train_sft
from fedpref.training.trained import Trained

PAIRS = make_pairs(5)
IDS = torch.tensor([[1, 2, 3, 4, 5]])


def describe(model: Any) -> dict[str, Any]:
    """Everything that a trainer is known to leave on a model."""
    return {
        "forward": ["forward" in vars(m) for m in model.modules()],
        "training": [m.training for m in model.modules()],
        "checkpointing": [getattr(m, "gradient_checkpointing", None) for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "modules": [name for name, _ in model.named_modules()],
        "types": [type(m) for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "grad": [(p.requires_grad, p.grad is None) for p in model.parameters()],
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
    }


def weights(model: Any) -> dict[str, Any]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train_everything(base: Any, spec: Any, state: Any, settings: Any = SETTINGS) -> Any:
    root = train_sft(base, spec, state, PAIRS, settings)
    assert root is not None
    reference = sequence_logps(base, spec, root.state, PAIRS, SETTINGS)
    trained = train_dpo(base, spec, root.state, PAIRS, reference, settings)
    assert trained is not None
    return trained


def evaluate(base: Any, spec: Any, state: Any) -> None:
    """Generation in batches, and the log-probs of preference accuracy."""
    prompts = [pair.prompt_ids for pair in PAIRS]
    generate(base, spec, state, prompts, batch_size=2, max_new_tokens=8)
    sequence_logps(base, spec, state, PAIRS, SETTINGS)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_leaves_the_base_as_it_was(
    base: Any, spec: Any, state: Any, checkpointing: bool
) -> None:
    before, values = describe(base.model), weights(base.model)
    logits = base.model(IDS).logits
    train_everything(base, spec, state, with_settings(gradient_checkpointing=checkpointing))
    assert describe(base.model) == before
    after = weights(base.model)
    assert all(torch.equal(values[name], after[name]) for name in values)
    assert torch.equal(base.model(IDS).logits, logits)


def test_an_error_inside_restores_as_well(base: Any, spec: Any, state: Any) -> None:
    before = describe(base.model)
    with pytest.raises(TrainingError, match="loss became"):
        # The first step is harmless; afterwards the weights are beyond float32.
        train_sft(base, spec, state, PAIRS * 3, with_settings(sft_learning_rate=1e38))
    assert describe(base.model) == before


def test_the_process_is_as_before(base: Any, spec: Any, state: Any) -> None:
    def snapshot() -> list[Any]:
        return [
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            dict(os.environ),
            warnings.filters[:],
            transformers.utils.logging.get_verbosity(),
            transformers.utils.logging.is_progress_bar_enabled(),
            base.tokenizer.padding_side,
            base.tokenizer.pad_token,
        ]

    random.seed(1)
    torch.set_num_threads(2)
    try:
        before = snapshot()
        train_everything(base, spec, state)
        assert snapshot() == before
    finally:
        torch.set_num_threads(1)


def test_threads_are_pinned_inside(base: Any) -> None:
    torch.set_num_threads(2)
    try:
        with model_session(base):
            assert torch.get_num_threads() == base.threads == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_no_trainer_lives_on_and_memory_is_flat(base: Any, spec: Any, state: Any) -> None:
    train_everything(base, spec, state)
    evaluate(base, spec, state)
    gc.collect()
    count = len(gc.get_objects())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        train_everything(base, spec, state)
        evaluate(base, spec, state)
    assert not [o for o in gc.get_objects() if isinstance(o, Trainer)]
    gc.collect()
    assert len(gc.get_objects()) - count < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 10_000  # kilobytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_gpu_is_flat(tmp_path: Path) -> None:
    base = load_base_model(save_tiny(tmp_path), device="cuda")
    spec = make_spec(base, LORA)
    state = initial_state(spec, 7)
    allocated = []
    for _ in range(4):
        train_everything(base, spec, state)
        evaluate(base, spec, state)
        torch.cuda.synchronize()
        allocated.append(torch.cuda.memory_allocated())
    assert len(set(allocated[1:])) == 1


def test_same_inputs_same_bits_whatever_ran_before(base: Any, spec: Any, state: Any) -> None:
    first = train_everything(base, spec, state)
    torch.manual_seed(99)
    random.seed(99)
    train_sft(base, spec, state, make_pairs(3, seed=5), SETTINGS, seed=4)
    second = train_everything(base, spec, state)
    assert state_digest(first.state) == state_digest(second.state)
    assert first.first_loss == second.first_loss


def test_the_seed_plays_no_part_as_nothing_is_random(base: Any, spec: Any, state: Any) -> None:
    one = train_sft(base, spec, state, PAIRS, SETTINGS, seed=1)
    two = train_sft(base, spec, state, PAIRS, SETTINGS, seed=2)
    assert one is not None
    assert two is not None
    assert state_digest(one.state) == state_digest(two.state)


def test_dropout_of_the_base_is_off_inside(base: Any, spec: Any, state: Any) -> None:
    attention = base.model.model.layers[0].self_attn
    before = train_sft(base, spec, state, PAIRS, SETTINGS)
    attention.attention_dropout = 0.9
    try:
        after = train_sft(base, spec, state, PAIRS, SETTINGS)
        assert attention.attention_dropout == 0.9
    finally:
        attention.attention_dropout = 0.0
    assert before is not None
    assert after is not None
    assert state_digest(before.state) == state_digest(after.state)


def test_a_rate_of_any_name_is_off_and_comes_back(tmp_path: Path) -> None:
    # OPT keeps two rates on its layers, 0.1 by default, and one that drops whole layers.
    base = load_base_model(save_tiny(tmp_path, "opt", layerdrop=0.5), device="cpu")
    spec = make_spec(base, LoraSettings(rank=4, alpha=8.0, targets=("q_proj", "v_proj")))
    decoder = base.model.model.decoder
    assert (decoder.layers[0].dropout, decoder.layerdrop) == (0.1, 0.5)
    before = describe(base.model)

    def train(seed: int) -> Trained:
        root = train_sft(base, spec, initial_state(spec, 7), PAIRS, SETTINGS, seed=seed)
        assert root is not None
        reference = sequence_logps(base, spec, root.state, PAIRS, SETTINGS)
        trained = train_dpo(base, spec, root.state, PAIRS, reference, SETTINGS, seed=seed)
        assert trained is not None
        return trained

    one, two = train(1), train(2)
    assert one.first_loss == pytest.approx(math.log(2), abs=1e-4)
    assert state_digest(one.state) == state_digest(two.state)
    assert (decoder.layers[0].dropout, decoder.layerdrop) == (0.1, 0.5)
    assert describe(base.model) == before


def test_adapter_session_changes_the_answer_and_takes_it_back(
    base: Any, spec: Any, root: Any
) -> None:
    before = describe(base.model)
    plain = base.model(IDS).logits
    with adapter_session(base, spec, root) as model:
        assert not model.training
        with torch.no_grad():
            assert (model(IDS).logits - plain).abs().max() > 1e-3
    assert describe(base.model) == before
    assert torch.equal(base.model(IDS).logits, plain)


def test_nothing_is_printed_or_left_on_disk(
    base: Any, spec: Any, state: Any, capfd: Any, caplog: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", None)  # a call would raise
    train_everything(base, spec, state)
    out, err = capfd.readouterr()
    assert out + err == ""
    assert caplog.text == ""
    assert not list(tmp_path.iterdir())
