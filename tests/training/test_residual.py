"""A frozen residual beside the adapter: served by policy and reference, trained by nobody."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from tiny_models import LORA, SETTINGS, make_pairs, save_tiny, with_settings
from transformers import AutoModelForCausalLM

from fedpref.adapter_state import AdapterSpec, AdapterState, save_adapter, state_digest
from fedpref.config import LoraSettings
from fedpref.evaluation.generation import generate
from fedpref.federation.aggregation import concatenate, fedex_aggregate
from fedpref.residual import load_served, rank_of, spec_of, split
from fedpref.training import trainer
from fedpref.training.adapter import RESIDUAL_NAME, make_spec, read_state
from fedpref.training.base_model import load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import reference_logps, sequence_logps
from fedpref.training.session import adapter_session
from fedpref.training.sft import train_sft

ENGINES = ["tree", "trl"]


def noise(spec: AdapterSpec, rank: int, seed: int, size: float = 0.1) -> AdapterState:
    generator = np.random.default_rng(seed)
    return {
        key: generator.normal(0, size, shape).astype(np.float32)
        for key, shape in zip(spec.keys, spec.at_rank(rank).shapes, strict=True)
    }


@pytest.fixture(scope="module")
def wide(spec: Any, root: Any) -> AdapterState:
    """The root with a residual of rank 3 beside it."""
    return concatenate([root, noise(spec, 3, 5)])


@pytest.mark.contract
@pytest.mark.parametrize(("family", "rslora"), [("qwen3", True), ("gpt2", False)])
def test_peft_serves_the_exact_average_from_one_file(
    tmp_path: Path, family: str, rslora: bool
) -> None:
    base = load_base_model(save_tiny(tmp_path / "base", family), device="cpu")
    targets = ("c_attn", "c_fc") if family == "gpt2" else LORA.targets
    spec = make_spec(base, LoraSettings(rank=3, alpha=10.0, rslora=rslora, targets=targets))
    updates, weights = [noise(spec, 3, seed, 0.3) for seed in range(3)], [5, 3, 1]
    mean, residual = fedex_aggregate(updates, weights, [spec.scale] * 3)
    state = concatenate([mean, residual])
    assert rank_of(state) == 3 + 6
    save_adapter(tmp_path / "adapter", state, spec_of(state, spec), base.name)
    assert state_digest(load_served(tmp_path / "adapter", spec)) == state_digest(state)

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = PeftModel.from_pretrained(theirs, tmp_path / "adapter")
    for key in spec.keys:
        if ".lora_A." not in key:
            continue
        key_b = key.replace("lora_A", "lora_B")
        exact = sum(
            w / 9 * spec.scale * u[key_b].astype(np.float64) @ u[key]
            for w, u in zip(weights, updates, strict=True)
        )
        layer = model.get_submodule(key.partition(".lora_A")[0])
        found = layer.get_delta_weight("default").detach().numpy()
        found = found.T if family == "gpt2" else found
        assert np.abs(found - exact).max() < 3e-6 * np.abs(exact).max()
        averaged = spec.scale * mean[key_b].astype(np.float64) @ mean[key]
        assert np.abs(averaged - exact).max() > 0.1 * np.abs(exact).max()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), adapter_session(base, spec, state) as ours:
        assert list(ours.peft_config) == ["default", RESIDUAL_NAME]
        torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_only_the_adapter_is_trained(
    base: Any, spec: Any, wide: AdapterState, monkeypatch: Any
) -> None:
    seen: dict[str, Any] = {}
    original = trainer._train

    def spy(phase: Any, *args: Any) -> Any:
        result = original(phase, *args)
        seen["residual"] = read_state(phase.model, RESIDUAL_NAME)
        seen["active"] = phase.model.base_model.active_adapters
        named = list(phase.model.named_parameters())
        seen["trainable"] = {name.rsplit(".", 2)[1] for name, p in named if p.requires_grad}
        seen["optimised"] = sum(
            p.numel() for group in phase.optimizer.param_groups for p in group["params"]
        )
        return result

    monkeypatch.setattr(trainer, "_train", spy)
    before = {name: p.clone() for name, p in base.model.named_parameters()}
    for settings in (with_settings(engine=engine) for engine in ENGINES):
        reference = sequence_logps(base, spec, wide, make_pairs(4), settings)
        trained = train_dpo(base, spec, wide, make_pairs(4), reference, settings)
        assert trained is not None
        assert rank_of(trained.state) == spec.rank
        assert seen["active"] == ["default", RESIDUAL_NAME]
        assert seen["trainable"] == {"default"}
        assert seen["optimised"] == spec.parameter_count
        assert state_digest(seen["residual"]) == state_digest(split(wide, spec.rank)[1] or {})
    assert dict(base.model.named_parameters()).keys() == before.keys()
    for name, parameter in base.model.named_parameters():
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize(
    ("engine", "dtype"), [("tree", "float32"), ("tree", "bfloat16"), ("trl", "bfloat16")]
)
def test_the_first_step_is_ln_2_only_if_both_sides_see_the_residual(
    tiny_folder: Path, wide: AdapterState, engine: str, dtype: str
) -> None:
    base = load_base_model(tiny_folder, dtype=dtype, device="cpu")
    spec = make_spec(base, LORA)
    settings, pairs = with_settings(engine=engine), make_pairs(4)
    narrow, _ = split(wide, spec.rank)
    with_it, without = (
        sequence_logps(base, spec, state, pairs, settings) for state in (wide, narrow)
    )

    def first_loss(state: AdapterState, reference: Any) -> float:
        trained = train_dpo(base, spec, state, pairs, reference, settings)
        assert trained is not None
        return trained.first_loss

    close = {"abs": 1e-4} if engine == "trl" else {"rel": 2**-23}
    assert first_loss(wide, with_it) == pytest.approx(math.log(2), **close)
    assert abs(first_loss(wide, without) - math.log(2)) > 1e-2
    assert abs(first_loss(narrow, with_it) - math.log(2)) > 1e-2


def test_two_adapters_serve_what_one_of_their_ranks_together_serves(
    base: Any, spec: Any, wide: AdapterState
) -> None:
    pairs = make_pairs(4)
    one = sequence_logps(base, spec_of(wide, spec), wide, pairs, SETTINGS)
    two = sequence_logps(base, spec, wide, pairs, SETTINGS)
    left_out = sequence_logps(base, spec, split(wide, spec.rank)[0], pairs, SETTINGS)
    for pair in pairs:
        assert two[pair.pair_id] == pytest.approx(one[pair.pair_id], abs=1e-3)
        assert abs(two[pair.pair_id][0] - left_out[pair.pair_id][0]) > 0.1


def test_answers_are_those_of_the_served_model(base: Any, spec: Any, wide: AdapterState) -> None:
    prompts = [pair.prompt_ids for pair in make_pairs(3)]
    served, as_one, left_out = (
        [a.token_ids for a in generate(base, s, state, prompts, batch_size=3, max_new_tokens=8)]
        for s, state in (
            (spec, wide),
            (spec_of(wide, spec), wide),
            (spec, split(wide, spec.rank)[0]),
        )
    )
    assert served == as_one
    assert served != left_out


def test_another_residual_is_another_reference(
    base: Any, spec: Any, root: Any, wide: AdapterState, tmp_path: Path
) -> None:
    pairs = make_pairs(2)
    stored = [
        reference_logps(base, spec, state, pairs, SETTINGS, tmp_path) for state in (root, wide)
    ]
    assert stored[0] != stored[1]
    assert len(list(tmp_path.iterdir())) == 2


def test_sft_trains_beside_a_residual_too(base: Any, spec: Any, wide: AdapterState) -> None:
    narrow, _ = split(wide, spec.rank)
    made = [train_sft(base, spec, state, make_pairs(4), SETTINGS) for state in (wide, narrow)]
    assert made[0] is not None
    assert made[1] is not None
    assert rank_of(made[0].state) == spec.rank
    assert made[0].first_loss != pytest.approx(made[1].first_loss, abs=1e-3)
