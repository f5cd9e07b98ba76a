"""Whole training trajectories against a plain torch loop written from the formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_pairs, with_settings

from fedpref.training.adapter import attach, load_state, read_state
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


@pytest.mark.parametrize("engine", ["tree", "trl"])
@pytest.mark.parametrize(
    ("count", "accumulation"),
    [
        (10, 4),  # the last group holds two pairs
        (3, 4),  # one group, smaller than the accumulation
        (23, 2),  # twelve steps: one of them warm-up
    ],
)
def test_sft_equals_a_plain_loop(
    base: Any, spec: Any, state: Any, count: int, accumulation: int, engine: str
) -> None:
    settings = with_settings(accumulation=accumulation, sft_learning_rate=1e-3, engine=engine)
    pairs = make_pairs(count)

    def loss(model: Any, group: Any) -> torch.Tensor:
        tokens = torch.cat([logp(model, p.prompt_ids, p.chosen_ids) for p in group])
        return -tokens.mean()  # over all response tokens of the group, not over pairs

    expected, losses = plain_loop(base, spec, state, pairs, settings, 1e-3, loss)
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


@pytest.mark.parametrize("engine", ["tree", "trl"])
@pytest.mark.parametrize(("count", "accumulation"), [(10, 4), (3, 4), (23, 2)])
def test_dpo_equals_a_plain_loop(
    base: Any, spec: Any, root: Any, count: int, accumulation: int, engine: str
) -> None:
    settings = with_settings(
        accumulation=accumulation, dpo_learning_rate=1e-3, beta=0.1, engine=engine
    )
    pairs = make_pairs(count, seed=3)
    reference = sequence_logps(base, spec, root, pairs, settings)

    def loss(model: Any, group: Any) -> torch.Tensor:
        terms = []
        for p in group:
            chosen = logp(model, p.prompt_ids, p.chosen_ids).sum() - reference[p.pair_id][0]
            rejected = logp(model, p.prompt_ids, p.rejected_ids).sum() - reference[p.pair_id][1]
            terms.append(-torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)))
        return torch.stack(terms).mean()

    expected, losses = plain_loop(base, spec, root, pairs, settings, 1e-3, loss)
    trained = train_dpo(base, spec, root, pairs, reference, settings)
    assert trained is not None
    assert trained.steps == len(losses)
    assert trained.trained_pair_count == count
    assert trained.first_loss == pytest.approx(losses[0], abs=1e-5)
    assert trained.last_loss == pytest.approx(losses[-1], abs=1e-5)
    assert largest_difference(trained.state, expected) <= 1e-5
    assert largest_difference(trained.state, root) > 5e-4


def test_warm_up() -> None:
    assert warmup_steps(9, 0.03) == 0  # ceil would be 1, and a single step would train nothing
    assert warmup_steps(10, 0.03) == 1
    assert warmup_steps(100, 0.03) == 3
    assert warmup_steps(101, 0.03) == 4
    assert warmup_steps(50, 0.0) == 0
