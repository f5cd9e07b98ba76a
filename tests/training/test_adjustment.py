"""What a strategy changes in a site's training: a proximal term, a frozen lora_A."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import SETTINGS, make_pairs, with_settings

from fedpref.adapter_state import state_digest
from fedpref.errors import TrainingError
from fedpref.training.adjustment import AS_USUAL, FREEZE_A, PROXIMAL_MU, Adjustment
from fedpref.training.dpo import train_dpo
from fedpref.training.sft import train_sft
from fedpref.training.trainer import PhaseMixin


def sft(base: Any, spec: Any, state: Any, count: int, **changes: Any) -> Any:
    adjustment = Adjustment(**changes)
    trained = train_sft(base, spec, state, make_pairs(count), SETTINGS, adjustment=adjustment)
    assert trained is not None
    return trained.state


def distance(one: Any, other: Any) -> float:
    return math.sqrt(sum(float(((one[k] - other[k]) ** 2).sum()) for k in one))


def test_a_frozen_lora_a_keeps_its_bits_in_both_phases(base: Any, spec: Any, state: Any) -> None:
    root = sft(base, spec, state, 5, freeze_a=True)
    pairs = make_pairs(5)
    reference = {pair.pair_id: (-20.0, -20.0) for pair in pairs}
    trained = train_dpo(
        base, spec, root, pairs, reference, SETTINGS, adjustment=Adjustment(freeze_a=True)
    )
    assert trained is not None
    for key in spec.keys:
        if ".lora_A." in key:
            np.testing.assert_array_equal(root[key], state[key])
            np.testing.assert_array_equal(trained.state[key], state[key])
        else:
            assert not np.array_equal(root[key], state[key]), key
            assert not np.array_equal(trained.state[key], root[key]), key


def test_the_next_training_is_as_usual(base: Any, spec: Any, state: Any) -> None:
    before = sft(base, spec, state, 5)
    sft(base, spec, state, 5, freeze_a=True, proximal_mu=1.0)
    assert state_digest(sft(base, spec, state, 5)) == state_digest(before)


def test_the_proximal_gradient_is_mu_times_the_way_from_the_start() -> None:
    start = torch.tensor([1.0, -2.0])
    parameter = torch.nn.Parameter(torch.tensor([3.0, -2.5]))
    # mu/2·‖w − start‖² by autograd, on top of a gradient that is there already.
    (0.75 / 2 * ((parameter - start) ** 2).sum()).backward()
    expected = parameter.grad.clone() + torch.tensor([10.0, 20.0])
    parameter.grad = torch.tensor([10.0, 20.0])
    PhaseMixin._add_proximal_gradient(
        SimpleNamespace(_start=[(parameter, start)], _proximal_mu=0.75)  # type: ignore[arg-type]
    )
    torch.testing.assert_close(parameter.grad, expected)


def test_the_term_is_added_once_a_step(
    base: Any, spec: Any, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = PhaseMixin._add_proximal_gradient
    monkeypatch.setattr(
        PhaseMixin,
        "_add_proximal_gradient",
        lambda self: (calls.append(self.state.global_step), real(self)),
    )
    assert SETTINGS.accumulation == 4
    sft(base, spec, state, 10, proximal_mu=0.1)
    assert calls == [0, 1, 2]


def test_the_first_step_is_free_and_later_ones_are_held_back(
    base: Any, spec: Any, state: Any
) -> None:
    # In the only step of four pairs the adapter is where it started: the term is zero.
    assert state_digest(sft(base, spec, state, 4, proximal_mu=1e3)) == state_digest(
        sft(base, spec, state, 4)
    )
    moved = [distance(sft(base, spec, state, 24, proximal_mu=mu), state) for mu in (0.0, 10.0, 1e4)]
    assert moved[0] > moved[1] > moved[2] > 0
    assert moved[2] < 0.5 * moved[0]


def test_the_recorded_loss_is_the_task_s(base: Any, spec: Any, state: Any) -> None:
    pairs, settings = make_pairs(4), with_settings()
    usual = train_sft(base, spec, state, pairs, settings)
    held = train_sft(base, spec, state, pairs, settings, adjustment=Adjustment(proximal_mu=1e3))
    assert usual is not None
    assert held is not None
    assert usual.first_loss == held.first_loss


def test_fields_of_a_message_become_an_adjustment() -> None:
    assert Adjustment.from_fields({}) is not AS_USUAL
    assert Adjustment.from_fields({"round": 3, "server-round": 4}) == AS_USUAL
    fields = {PROXIMAL_MU: 1, FREEZE_A: True}
    assert Adjustment.from_fields(fields) == Adjustment(1.0, True)


@pytest.mark.parametrize(
    "fields",
    [
        {PROXIMAL_MU: -0.1},
        {PROXIMAL_MU: float("nan")},
        {PROXIMAL_MU: "1"},
        {FREEZE_A: 1},
        {FREEZE_A: "yes"},
    ],
)
def test_a_setting_of_no_use_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match="the strategy sent"):
        Adjustment.from_fields(fields)
