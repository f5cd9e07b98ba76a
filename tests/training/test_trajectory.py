"""Whole training trajectories against a plain torch loop written from the formulas."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import bare_model
from tiny_models import LORA, make_pairs, with_settings

from fedpref.adapter_state import initial_state
from fedpref.training import adapter, trainer
from fedpref.training import reference as reference_module
from fedpref.training.adapter import attach, load_state, make_spec, read_state
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.session import model_session
from fedpref.training.sft import train_sft
from fedpref.training.trainer import warmup_steps

pytestmark = pytest.mark.contract


def logp(model: Any, prompt: tuple[int, ...], response: tuple[int, ...]) -> torch.Tensor:
    """Log-probs of each response token, one sequence at a time, without padding."""
    ids = torch.tensor([prompt + response])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(response)[:, None])[:, 0]


def sft_loss(model: Any, group: Any) -> torch.Tensor:
    """Over all response tokens of the group, not over pairs."""
    return -torch.cat([logp(model, p.prompt_ids, p.chosen_ids) for p in group]).mean()


def dpo_loss(reference: Any, model: Any, group: Any) -> torch.Tensor:
    """With beta 0.1, over the pairs of the group."""
    terms = []
    for p in group:
        chosen = logp(model, p.prompt_ids, p.chosen_ids).sum() - reference[p.pair_id][0]
        rejected = logp(model, p.prompt_ids, p.rejected_ids).sum() - reference[p.pair_id][1]
        terms.append(-torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)))
    return torch.stack(terms).mean()


def plain_loop(
    base: Any, spec: Any, state: Any, pairs: Any, settings: Any, rate: float, group_loss: Any
) -> tuple[Any, list[float]]:
    """AdamW, cosine decay after warm-up, norm clipped at 1: step t of T has its rate before it."""
    groups = [
        pairs[i : i + settings.accumulation] for i in range(0, len(pairs), settings.accumulation)
    ]
    warm = warmup_steps(len(groups), settings.warmup_ratio)
    losses = []
    with model_session(base) as bare:
        model = attach(bare, spec)
        load_state(model, spec, state)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
        for step, group in enumerate(groups):
            if step < warm:
                factor = step / warm
            else:
                factor = 0.5 * (1 + math.cos(math.pi * (step - warm) / (len(groups) - warm)))
            for options in optimizer.param_groups:
                options["lr"] = rate * factor
            optimizer.zero_grad()
            loss = group_loss(model, group)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss.item())
        return read_state(model), losses


def largest_difference(one: Any, two: Any) -> float:
    return max(float(np.abs(one[key] - two[key]).max()) for key in one)


# Ways of computing the same numbers.
WAYS: dict[str, dict[str, Any]] = {
    "tree": {},
    "split": {"max_tree_tokens": 60},
    "split, checkpointing": {"max_tree_tokens": 60, "gradient_checkpointing": True},
    "trl": {"engine": "trl"},
}


@pytest.mark.parametrize("way", ["tree", "split, checkpointing", "trl"])
@pytest.mark.parametrize(
    ("count", "accumulation"),
    [
        (10, 4),  # the last group holds two pairs
        (3, 4),  # one group, smaller than the accumulation
        (23, 2),  # twelve steps: one of them warm-up
    ],
)
def test_sft_equals_a_plain_loop(
    base: Any, spec: Any, state: Any, count: int, accumulation: int, way: str
) -> None:
    settings = with_settings(accumulation=accumulation, sft_learning_rate=1e-3, **WAYS[way])
    pairs = make_pairs(count)

    expected, losses = plain_loop(base, spec, state, pairs, settings, 1e-3, sft_loss)
    trained = train_sft(base, spec, state, pairs, settings)
    assert trained is not None
    assert trained.steps == len(losses) == math.ceil(count / accumulation)
    assert trained.trained_pair_count == count
    assert trained.first_loss == pytest.approx(losses[0], abs=1e-5)
    assert trained.last_loss == pytest.approx(losses[-1], abs=1e-5)
    assert trained.mean_loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert largest_difference(trained.state, expected) <= 1e-5
    assert largest_difference(trained.state, state) > 5e-4  # it moved far more than that


def test_sft_divides_by_the_group_s_tokens_whatever_the_model_accepts(
    base: Any, spec: Any, state: Any
) -> None:
    # Some architectures say no here; transformers then stops counting tokens over the group.
    pairs = make_pairs(6)
    settings = with_settings(engine="trl")
    expected = train_sft(base, spec, state, pairs, settings)
    base.model.accepts_loss_kwargs = False
    try:
        trained = train_sft(base, spec, state, pairs, settings)
    finally:
        del base.model.accepts_loss_kwargs
    assert trained is not None
    assert expected is not None
    assert trained.mean_loss == expected.mean_loss
    assert largest_difference(trained.state, expected.state) == 0


@pytest.mark.parametrize("way", ["tree", "split, checkpointing", "trl"])
@pytest.mark.parametrize(("count", "accumulation"), [(10, 4), (3, 4), (23, 2)])
def test_dpo_equals_a_plain_loop(
    base: Any, spec: Any, root: Any, count: int, accumulation: int, way: str
) -> None:
    settings = with_settings(
        accumulation=accumulation, dpo_learning_rate=1e-3, beta=0.1, **WAYS[way]
    )
    pairs = make_pairs(count, seed=3)
    reference = sequence_logps(base, spec, root, pairs, settings)

    loss = partial(dpo_loss, reference)
    expected, losses = plain_loop(base, spec, root, pairs, settings, 1e-3, loss)
    trained = train_dpo(base, spec, root, pairs, reference, settings)
    assert trained is not None
    assert trained.steps == len(losses)
    assert trained.trained_pair_count == count
    assert trained.first_loss == pytest.approx(losses[0], abs=1e-5)
    assert trained.last_loss == pytest.approx(losses[-1], abs=1e-5)
    assert largest_difference(trained.state, expected) <= 1e-5
    assert largest_difference(trained.state, root) > 5e-4


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter is float32 whatever its base is; here it becomes float64 when it is loaded."""
    load = adapter.load_state

    def load_in_float64(model: Any, spec: Any, state: Any) -> None:
        load(model, spec, state)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.double()

    for module in (trainer, reference_module, sys.modules[__name__]):
        monkeypatch.setattr(module, "load_state", load_in_float64)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("phase", ["sft", "dpo"])
@pytest.mark.parametrize(
    ("family", "way"),
    [
        ("qwen3", "split"),
        ("qwen3", "split, checkpointing"),
        ("gemma3, window", "split, checkpointing"),
    ],
)
def test_in_float64_within_a_millionth(base: Any, family: str, way: str, phase: str) -> None:
    """Twelve steps by the trainers themselves, against two sequences by the plain loop."""
    # No setting loads float64. transformers' norms compute in float32 whatever they are given, and
    # are replaced in this model, for both sides. What is returned is rounded to float32 in the end.
    model = bare_model(family)
    exact = replace(base, model=model, dtype="float64")
    spec = make_spec(exact, LORA)
    start = initial_state(spec, 7)
    pairs = make_pairs(23, seed=5)
    settings = with_settings(
        accumulation=2, sft_learning_rate=1e-3, dpo_learning_rate=1e-3, **WAYS[way]
    )
    if phase == "sft":
        expected, losses = plain_loop(exact, spec, start, pairs, settings, 1e-3, sft_loss)
        trained = train_sft(exact, spec, start, pairs, settings)
    else:
        reference = sequence_logps(exact, spec, start, pairs, settings)
        loss = partial(dpo_loss, reference)
        expected, losses = plain_loop(exact, spec, start, pairs, settings, 1e-3, loss)
        trained = train_dpo(exact, spec, start, pairs, reference, settings)
    assert trained is not None
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert trained.steps == 12
    assert trained.last_loss == pytest.approx(losses[-1], rel=1e-6)
    for key, value in expected.items():
        assert np.linalg.norm(trained.state[key] - value) <= 1e-6 * np.linalg.norm(value)
        if "lora_B" in key:
            assert np.abs(value).max() > 1e-3


def test_warm_up() -> None:
    assert warmup_steps(9, 0.03) == 0  # ceil would be 1, and a single step would train nothing
    assert warmup_steps(10, 0.03) == 1
    assert warmup_steps(100, 0.03) == 3
    assert warmup_steps(101, 0.03) == 4
    assert warmup_steps(50, 0.0) == 0
