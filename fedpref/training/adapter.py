"""The only place that touches PEFT: attaching LoRA, loading a state into it, reading one out.

PEFT loads with strict=False and only reports what did not fit; here a state loads completely, which
is checked by reading it back, or AdapterError is raised. A residual (`fedpref.residual`) becomes a
second adapter, active and frozen.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils import set_peft_model_state_dict
from transformers import PreTrainedModel

from fedpref.adapter_state import AdapterSpec, AdapterState, check_state, state_digest
from fedpref.errors import AdapterError, ModelError
from fedpref.residual import rank_of, split
from fedpref.training.base_model import BaseModel

if TYPE_CHECKING:
    from fedpref.config import LoraSettings

ADAPTER_NAME = "default"
RESIDUAL_NAME = "frozen_residual"


def lora_config(spec: AdapterSpec) -> LoraConfig:
    """Return PEFT's configuration of `spec`: no dropout, no bias, causal language model."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # PEFT only multiplies by it
        use_rslora=spec.rslora,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(spec.targets),
    )


def attach(model: PreTrainedModel, spec: AdapterSpec) -> PeftModel:
    """Return `model` wrapped with a fresh float32 LoRA adapter; use inside a model session only."""
    return get_peft_model(model, lora_config(spec), adapter_name=ADAPTER_NAME)


def read_state(model: PeftModel, name: str = ADAPTER_NAME) -> AdapterState:
    """Return an adapter of `model` as float32 numpy arrays (copies), keys sorted."""
    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return {
        key: tensors[key].detach().to("cpu", torch.float32, copy=True).numpy()
        for key in sorted(tensors)
    }


def load_state(model: PeftModel, spec: AdapterSpec, state: AdapterState) -> None:
    """Put `state` into the adapter of `model`, every key of it, bit for bit, in float32.

    What it has beyond the rank of `spec` is added to what the model serves and is not trained.
    """
    trained, residual = split(state, spec.rank)
    _fill(model, spec, trained, ADAPTER_NAME)
    if residual is None:
        return
    beside = spec.at_rank(rank_of(residual))
    model.add_adapter(RESIDUAL_NAME, lora_config(beside))
    _fill(model, beside, residual, RESIDUAL_NAME)
    model.base_model.set_adapter([ADAPTER_NAME, RESIDUAL_NAME])
    for name, parameter in model.named_parameters():
        if f".{RESIDUAL_NAME}." in name:
            parameter.requires_grad_(False)


def _fill(model: PeftModel, spec: AdapterSpec, state: AdapterState, adapter: str) -> None:
    check_state(state, spec)
    for name, parameter in model.named_parameters():
        # TRL and PEFT hold LoRA weights in bfloat16 on some bases, where 5e-6 moves nothing.
        if f".{adapter}." in name and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    tensors = {key: torch.from_numpy(state[key].copy()) for key in spec.keys}
    result: Any = set_peft_model_state_dict(model, tensors, adapter_name=adapter)
    missing = [key for key in result.missing_keys if f".{adapter}." in key]
    for key in [*missing, *result.unexpected_keys]:
        raise AdapterError(
            "the adapter did not load completely",
            key=key,
            why=f"{len(missing)} tensors of the model were not filled and "
            f"{len(result.unexpected_keys)} were not placed",
            fix="the state must come from the same base model, LoRA rank and targets",
        )
    found = read_state(model, adapter)
    if state_digest(found) != state_digest({key: state[key] for key in spec.keys}):
        raise AdapterError(
            "the adapter in the model differs from the one that was loaded",
            why="PEFT changed or skipped a tensor",
        )


def freeze_a(model: PeftModel) -> None:
    """Leave only lora_B trainable; use inside a model session, before an optimiser is made."""
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            parameter.requires_grad_(False)


def check_trained(state: AdapterState) -> None:
    """Raise AdapterError if every lora_B is zero: such an adapter is as good as none."""
    if not any(np.any(array) for key, array in state.items() if ".lora_B." in key):
        raise AdapterError(
            "the adapter is untrained: every lora_B is zero after training",
            why="no optimiser step moved it",
            fix="check the learning rate and that the pairs hold response tokens",
        )


def spec_of(model: PreTrainedModel, lora: "LoraSettings") -> AdapterSpec:
    """Return what PEFT makes of `lora` on `model`, by attaching it; use inside a model session."""
    names = [name for name, module in model.named_modules() if hasattr(module, "weight")]
    last = {name.rpartition(".")[2] for name in names}
    if absent := [target for target in lora.targets if target not in last]:
        raise ModelError(
            f"the base model has no layer named {', '.join(absent)}",
            why="every LoRA target must exist",
            fix=f"set lora.targets from: {', '.join(sorted(last - {''}))}",
        )
    probe = AdapterSpec(lora.rank, lora.alpha, lora.rslora, tuple(sorted(lora.targets)), (), ())
    state = read_state(attach(model, probe))
    return AdapterSpec(
        rank=lora.rank,
        alpha=lora.alpha,
        rslora=lora.rslora,
        targets=probe.targets,
        keys=tuple(state),
        shapes=tuple(tuple(array.shape) for array in state.values()),
    )


def make_spec(base: BaseModel, lora: "LoraSettings") -> AdapterSpec:
    """Return the adapter specification of `lora` on `base`; the base is left as it was.

    Raises ModelError naming targets that the model lacks.
    """
    # session.py builds on this module, so that the import cannot stand at the top.
    from fedpref.training.session import model_session  # noqa: PLC0415

    with model_session(base) as model:
        return spec_of(model, lora)
