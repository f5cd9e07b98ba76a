"""A tiny float64 model of every architecture that takes trees, with and without windows."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

COMMON: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
# Far shorter than the sequences, so that a window in the wrong place is seen.
WINDOW: dict[str, Any] = {"sliding_window": 16}
KINDS = ["full_attention", "sliding_attention", "full_attention"]
FAMILIES: dict[str, Any] = {
    "qwen3": Qwen3Config(**COMMON),
    "qwen3, window": Qwen3Config(
        **COMMON, **WINDOW, use_sliding_window=True, layer_types=KINDS, max_window_layers=0
    ),
    "qwen2": Qwen2Config(**COMMON),
    "qwen2, window": Qwen2Config(
        **COMMON, **WINDOW, use_sliding_window=True, layer_types=KINDS, max_window_layers=0
    ),
    "llama": LlamaConfig(**COMMON),
    "mistral": MistralConfig(**COMMON, sliding_window=None),
    "mistral, window": MistralConfig(**COMMON, **WINDOW),
    "gemma": GemmaConfig(**COMMON),
    "gemma2, window": Gemma2Config(
        **COMMON, **WINDOW, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "gemma3, window": Gemma3TextConfig(
        **COMMON, **WINDOW, query_pre_attn_scalar=8, layer_types=KINDS
    ),
}
# A window that a configuration names and its architecture ignores.
STRAY: dict[str, Any] = {
    "qwen2, a stray window": Qwen2Config(**COMMON, **WINDOW),
    "llama, a stray window": LlamaConfig(**COMMON, **WINDOW),
    "gemma, a stray window": GemmaConfig(**COMMON, **WINDOW),
}
CONFIGS = FAMILIES | STRAY


def bare_model(family: str, attention: str | None = None) -> Any:
    """A random float64 model; its configuration is its own, so that no test changes another's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(CONFIGS[family]), dtype=torch.float64, attn_implementation=attention
        )
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.2)
    keep_norms_in_float64(model)
    return model


def keep_norms_in_float64(model: Any) -> None:
    """transformers' RMS norms compute in float32: their gradients would differ by its rounding."""

    def norm(module: Any, x: torch.Tensor) -> torch.Tensor:
        weight = 1 + module.weight if "Gemma" in type(module).__name__ else module.weight
        eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(norm, module)
