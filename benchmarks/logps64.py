"""Log-probs in float64 of each response with its whole prompt, and how far trees are from them.

Trees are FedPref's, in float32. What float64 gives has nothing of them: one sequence at a time, no
padding, the model's own causal attention, a float64 log-softmax.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import TrainingSettings
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import pair_sequences
from fedpref.training.reference import sequence_logps
from fedpref.training.session import adapter_session

LIMIT = 1e-5  # how far a float32 tree may be from float64, relative


def in_precision(base: BaseModel, dtype: str) -> BaseModel:
    """Return the base in float32 or float64; a copy unless it is so already.

    transformers' RMS norms compute in float32 whatever they are given; in a float64 copy of a
    Llama, Mistral or Qwen model they do not.
    """
    if base.dtype == dtype:
        return base
    model = copy.deepcopy(base.model).to(getattr(torch, dtype))
    if dtype == "float64":
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
                module.forward = partial(_norm, module)
    return replace(base, model=model, dtype=dtype)


def _norm(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def alone(
    base: BaseModel, spec: AdapterSpec, state: AdapterState, pairs: Sequence[EncodedPair]
) -> list[float]:
    """Return log π(response|prompt) of chosen and rejected of each pair, in nats, from float64."""
    exact = in_precision(base, "float64")
    found = []
    with adapter_session(exact, spec, state) as model, torch.inference_mode():
        model.double()  # the adapter, too
        for prompt, response in pair_sequences(pairs):
            ids = torch.tensor([[*prompt, *response]], device=exact.device)
            # The token before each of the response predicts it.
            kept = len(response) + 1
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0, :-1]
            logps = logits.double().log_softmax(-1)
            found.append(float(logps.gather(1, ids[0, len(prompt) :, None]).sum()))
    return found


def tree_deviation(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: TrainingSettings,
) -> float:
    """Return the largest relative distance of a response's log-prob in a tree from float64's."""
    single = in_precision(base, "float32")
    trees = sequence_logps(single, spec, state, pairs, settings)
    in_trees = np.array([value for pair in pairs for value in trees[pair.pair_id]])
    exact = np.array(alone(single, spec, state, pairs))
    return float(np.max(np.abs(in_trees - exact) / np.abs(exact)))  # not a number if one is none
