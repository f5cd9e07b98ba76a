"""PEFT states: complete or refused, and the same keys, shapes and start as PEFT's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from tiny_models import LORA, byte_tokenizer, make_pairs, save_tiny, with_settings

from fedpref.adapter_state import initial_state, load_adapter, save_adapter, state_digest
from fedpref.config import LoraSettings
from fedpref.errors import AdapterError, ModelError
from fedpref.training.adapter import attach, check_trained, load_state, make_spec, read_state
from fedpref.training.base_model import load_base_model
from fedpref.training.session import adapter_session, model_session
from fedpref.training.sft import train_sft

pytestmark = pytest.mark.contract
IDS = torch.tensor([[5, 6, 7, 8]])


def test_spec_has_a_and_b_for_each_layer_and_target(spec: Any) -> None:
    assert len(spec.keys) == 2 * 2 * 7  # A and B, two layers, seven targets
    shapes = dict(zip(spec.keys, spec.shapes, strict=True))
    prefix = "base_model.model.model.layers.1.mlp.up_proj"
    assert shapes[f"{prefix}.lora_A.weight"] == (4, 32)  # rank, hidden
    assert shapes[f"{prefix}.lora_B.weight"] == (48, 4)  # intermediate, rank
    assert spec.scale == 2.0
    assert "default" not in "".join(spec.keys)


def test_initial_bound_is_that_of_peft(base: Any, spec: Any, state: Any) -> None:
    with model_session(base) as model:
        theirs = read_state(attach(model, spec))
    for key, shape in zip(spec.keys, spec.shapes, strict=True):
        if ".lora_A." in key:
            bound = 1 / np.sqrt(shape[1])
            assert np.abs(theirs[key]).max() <= bound
            assert np.abs(theirs[key]).max() > 0.9 * bound
            assert np.abs(state[key]).max() > 0.9 * bound
        else:
            assert not theirs[key].any()


def test_absent_targets_are_named_with_what_there_is(base: Any) -> None:
    with pytest.raises(ModelError, match=r"no layer named w_q.*q_proj"):
        make_spec(base, LoraSettings(targets=("q_proj", "w_q")))


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_saved_adapters_load_with_peft(tmp_path: Path, family: str, rslora: bool) -> None:
    # GPT-2 stores its weights transposed, and 32→48 is not square: a mix-up would show.
    base = load_base_model(save_tiny(tmp_path / "base", family), device="cpu")
    targets = ("c_attn", "c_fc") if family == "gpt2" else LORA.targets
    lora = LoraSettings(rank=3, alpha=12.0, rslora=rslora, targets=targets)
    spec = make_spec(base, lora)
    generator = np.random.default_rng(0)
    state = {
        key: generator.normal(0, 0.3, shape).astype(np.float32)
        for key, shape in zip(spec.keys, spec.shapes, strict=True)
    }
    save_adapter(tmp_path / "adapter", state, spec, base.name)
    assert state_digest(load_adapter(tmp_path / "adapter", spec)) == state_digest(state)
    with torch.no_grad():
        with adapter_session(base, spec, state) as model:
            ours = model(IDS).logits
        # Base + scale·B·A, written out: the scale is where alpha, rank and rsLoRA meet.
        with model_session(base) as model:
            for key in spec.keys:
                if ".lora_A." not in key:
                    continue
                b = torch.from_numpy(state[key.replace("lora_A", "lora_B")])
                delta = spec.scale * b @ torch.from_numpy(state[key])
                name = key.removeprefix("base_model.model.").replace(".lora_A", "")
                weight = model.get_parameter(name)
                weight.data = weight.data + (delta.T if family == "gpt2" else delta)
            merged = model(IDS).logits
        with model_session(base) as model:
            theirs = PeftModel.from_pretrained(model, tmp_path / "adapter")(IDS).logits
    assert torch.equal(ours, theirs)
    assert (ours - base.model(IDS).logits).abs().max() > 0.1
    assert (ours - merged).abs().max() <= 1e-4


def test_a_session_that_replaced_weights_puts_them_back(base: Any) -> None:
    before = base.model.lm_head.weight.detach().clone()
    with model_session(base) as model:
        model.lm_head.weight.data = model.lm_head.weight.data + 1
    assert torch.equal(base.model.lm_head.weight, before)


def test_round_trip_and_lora_b_checksum(base: Any, spec: Any, root: Any) -> None:
    with adapter_session(base, spec, root) as model:
        assert state_digest(read_state(model)) == state_digest(root)
        total = sum(p.double().sum().item() for n, p in model.named_parameters() if "lora_B" in n)
    expected = sum(float(a.astype(np.float64).sum()) for k, a in root.items() if ".lora_B." in k)
    assert total == pytest.approx(expected, rel=1e-12)
    assert expected != 0


def test_loading_copies(base: Any, spec: Any, root: Any) -> None:
    digest = state_digest(root)
    with adapter_session(base, spec, root) as model:
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.data.add_(1)
    assert state_digest(root) == digest


@pytest.mark.parametrize("change", ["dropped", "default", "unprefixed"])
def test_keys_that_peft_would_skip_are_refused(
    base: Any, spec: Any, root: Any, change: str
) -> None:
    first, *others = spec.keys
    rename = {
        "dropped": {},
        "default": {first: first.replace(".weight", ".default.weight")},
        "unprefixed": {first: first.removeprefix("base_model.model.")},
    }[change]
    state = {rename[first]: root[first]} if rename else {}
    state |= {key: root[key] for key in others}
    with model_session(base) as model, pytest.raises(AdapterError):
        load_state(attach(model, spec), spec, state)


def test_a_model_without_the_adapter_s_layers_is_refused(tmp_path: Path, spec: Any) -> None:
    # The state fits its spec; the model has one layer less: PEFT would only warn.
    smaller = load_base_model(save_tiny(tmp_path / "m", num_hidden_layers=1), device="cpu")
    state = initial_state(spec, 0)
    with (
        model_session(smaller) as model,
        pytest.raises(AdapterError, match="did not load completely"),
    ):
        load_state(attach(model, spec), spec, state)


def test_a_bfloat16_adapter_is_brought_to_float32(base: Any, spec: Any, root: Any) -> None:
    with model_session(base) as model:
        wrapped = attach(model, spec)
        for name, parameter in wrapped.named_parameters():
            if "lora" in name:
                parameter.data = parameter.data.bfloat16()
        load_state(wrapped, spec, root)
        assert state_digest(read_state(wrapped)) == state_digest(root)


def test_all_zero_lora_b_is_refused(state: Any, root: Any) -> None:
    check_trained(root)
    with pytest.raises(AdapterError, match="every lora_B is zero"):
        check_trained(state)


@pytest.mark.parametrize("pad", ["<|pad|>", "<|im_end|>"])
def test_training_works_where_pad_is_eos(tmp_path: Path, pad: str) -> None:
    # The end of turn must stay in the loss although its id is the padding's.
    folder = save_tiny(tmp_path / "m", "llama", tokenizer=byte_tokenizer(pad_token=pad))
    base = load_base_model(folder, device="cpu")
    spec = make_spec(base, LORA)
    pairs = make_pairs(4)
    state = initial_state(spec, 0)
    trained = train_sft(base, spec, state, pairs, with_settings(sft_learning_rate=1e-3))
    tokens = [
        torch.log_softmax(
            base.model(torch.tensor([[*p.prompt_ids, *p.chosen_ids]])).logits[0].detach(), -1
        )[len(p.prompt_ids) - 1 : -1]
        .gather(1, torch.tensor(p.chosen_ids)[:, None])
        .ravel()
        for p in pairs
    ]
    assert trained is not None
    assert trained.first_loss == pytest.approx(-torch.cat(tokens).mean().item(), abs=1e-5)
