"""Tiny random models with a byte-level tokenizer, built in the test: no download, no text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from fedpref.config import LoraSettings, TrainingSettings
from fedpref.training.encoding import EncodedPair

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3_THINK = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def byte_tokenizer(template: str | None = CHATML, **special: Any) -> PreTrainedTokenizerFast:
    """One token a byte, plus special tokens; pad, eos and bos as asked for."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    options = {"pad_token": "<|pad|>", "eos_token": "<|im_end|>"} | special
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, extra_special_tokens=["<|im_start|>", "<|im_end|>"], **options
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_config(family: str, vocab: int, **more: Any) -> Any:
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,  # the compact prompt takes a token a byte
        "tie_word_embeddings": True,
    }
    if family == "qwen3":
        return Qwen3Config(**(common | {"head_dim": 8} | more))
    if family == "llama":
        return LlamaConfig(**(common | more))
    if family == "opt":
        del common["intermediate_size"], common["num_key_value_heads"]
        return OPTConfig(**(common | {"ffn_dim": 48, "word_embed_proj_dim": 32} | more))
    return GPT2Config(vocab_size=vocab, n_embd=32, n_layer=2, n_head=4, n_positions=512, **more)


def save_tiny(
    folder: Path, family: str = "qwen3", tokenizer: Any = None, seed: int = 0, **more: Any
) -> Path:
    """Write a random model of the family with its tokenizer to `folder`."""
    tokenizer = tokenizer or byte_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, len(tokenizer), **more))
        # The default 0.02 leaves a tiny model with nearly uniform predictions and tiny gradients.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LORA = LoraSettings(rank=4, alpha=8.0)
SETTINGS = TrainingSettings(sft_learning_rate=1e-2, dpo_learning_rate=1e-2, max_length=256)


def make_pairs(count: int, seed: int = 0, vocab: int = 250) -> list[EncodedPair]:
    """Random pairs of unequal lengths over a shared system prefix."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        size = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(0, vocab, (size,), generator=generator).tolist())

    system = ids(10, 11)
    return [
        EncodedPair(f"pair-{i}", system + ids(5, 30), (*ids(3, 20), 256), (*ids(3, 20), 256))
        for i in range(count)
    ]


def with_settings(**changes: Any) -> TrainingSettings:
    return SETTINGS.model_copy(update=changes)
