"""Base models of a known shape with random weights, made on the fly: their speed is the real one's.

The tokenizer is the demo model's, so that no file is fetched; its ids are a part of the vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from fedpref.demo import DEMO_MODEL_FOLDER
from fedpref.training.base_model import BaseModel

_QWEN3: dict[str, Any] = {
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    # For a run that only shows that everything works.
    "qwen3-smoke": {
        **_QWEN3,
        "vocab_size": 4096,
        "hidden_size": 32,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}


def random_base(shape: str, *, dtype: str, device: str, threads: int = 1) -> BaseModel:
    """Return a frozen base model of the shape with the weights of a fixed seed."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_FOLDER, local_files_only=True)
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        config = Qwen3Config(**SHAPES[shape], **ids)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.eval()
    model.requires_grad_(False)
    return BaseModel(
        model=model,
        tokenizer=tokenizer,
        name=shape,
        path=Path(shape),
        weights_digest=shape,
        tokenizer_digest="demo",
        device=device,
        dtype=dtype,
        threads=threads,
    )
