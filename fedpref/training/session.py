"""One context manager around every use of the cached base model: afterwards nothing has changed.

Trainers re-wrap `forward`, set train mode, gradient checkpointing, hooks, dropout and token ids,
reseed the global random generators and change the process environment. A session takes a snapshot
of all of that before and puts it back after, also on errors. Inside, the number of CPU threads is
the base model's, dropout is off and libraries are silent (they could print text).
"""

import copy
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.training.adapter import attach, load_state
from fedpref.training.base_model import BaseModel
from fedpref.training.quiet import quiet


@contextmanager
def model_session(base: BaseModel) -> Iterator[PreTrainedModel]:
    """Yield the bare base model for any use; it and the process are as before afterwards."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(_environment_restored())
        stack.enter_context(_random_state_restored())
        stack.enter_context(_threads(base.threads))
        stack.enter_context(_compilation_restored())
        stack.enter_context(_tokenizer_restored(base))
        stack.enter_context(_modules_restored(base.model))
        _disable_dropout(base.model)
        base.model.eval()
        yield base.model


@contextmanager
def adapter_session(base: BaseModel, spec: AdapterSpec, state: AdapterState) -> Iterator[PeftModel]:
    """Yield the base model with `state` attached, in eval mode, for generation or log-probs.

    Gradients are not disabled here: wrap a forward in `torch.no_grad()`.
    """
    with model_session(base) as model:
        peft_model = attach(model, spec)
        load_state(peft_model, spec, state)
        peft_model.eval()
        yield peft_model


def _disable_dropout(model: PreTrainedModel) -> None:
    """Set every dropout to 0: the reference log-probs and the training forward must agree.

    Besides modules of their own there are rates that a forward reads from its module or from the
    configuration, under a name of each architecture's choice (`dropout`, `attn_dropout_p`,
    `layerdrop`).
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for attributes in (vars(model.config), *map(vars, model.modules())):
        for name, value in attributes.items():
            if "drop" in name and isinstance(value, float):
                attributes[name] = 0.0


@contextmanager
def _modules_restored(model: PreTrainedModel) -> Iterator[None]:
    """Restore each module's attributes, sub-modules and hooks, and the configurations.

    Parameters get back their storage, gradient and flag; what is written into a storage stays.
    """
    modules = [(module, _shallow(module.__dict__)) for module in model.modules()]
    parameters = [(p, p.data, p.requires_grad, p.grad) for p in model.parameters()]
    configs = [(c, copy.deepcopy(c.__dict__)) for c in (model.config, model.generation_config) if c]
    try:
        yield
    finally:
        for module, attributes in modules:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for parameter, data, requires_grad, grad in parameters:
            parameter.data = data
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        for config, attributes in configs:
            config.__dict__.clear()
            config.__dict__.update(attributes)


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copy a module's attributes and their containers, but not what the containers hold."""
    return {
        key: copy.copy(value) if isinstance(value, dict | list | set) else value
        for key, value in attributes.items()
    }


@contextmanager
def _tokenizer_restored(base: BaseModel) -> Iterator[None]:
    tokenizer = base.tokenizer
    names = ("padding_side", "truncation_side", "pad_token", "chat_template")
    before = {name: getattr(tokenizer, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(tokenizer, name, value)


@contextmanager
def _random_state_restored() -> Iterator[None]:
    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _compilation_restored() -> Iterator[None]:
    before = torch._dynamo.config.recompile_limit
    try:
        yield
    finally:
        torch._dynamo.config.recompile_limit = before


@contextmanager
def _environment_restored() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
