from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CHATML, byte_tokenizer, save_tiny

from fedpref.errors import ModelError
from fedpref.training.base_model import load_base_model


def test_float32_on_the_cpu_frozen_in_eval_mode_and_cached(base: Any, tiny_folder: Path) -> None:
    assert {p.dtype for p in base.model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in base.model.parameters())
    assert not base.model.training
    assert (base.device, base.dtype, base.threads) == ("cpu", "float32", 1)
    assert load_base_model(str(tiny_folder), device="cpu") is base
    assert load_base_model(tiny_folder, device="cpu", threads=2) is not base


def test_bfloat16_on_disk_becomes_float32(tmp_path: Path, tiny_folder: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors = {key: tensor.bfloat16() for key, tensor in tensors.items()}
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    loaded = load_base_model(tmp_path / "m", device="cpu")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_digests_follow_content_not_place(tmp_path: Path, base: Any, tiny_folder: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "copy")
    copy = load_base_model(tmp_path / "copy", device="cpu")
    assert copy.weights_digest == base.weights_digest
    assert copy.tokenizer_digest == base.tokenizer_digest

    other = load_base_model(save_tiny(tmp_path / "weights", seed=1), device="cpu")
    assert other.weights_digest != base.weights_digest
    assert other.tokenizer_digest == base.tokenizer_digest

    template = byte_tokenizer(CHATML.replace("m.content", "m.content + ' '"))
    other = load_base_model(save_tiny(tmp_path / "template", tokenizer=template), device="cpu")
    assert other.weights_digest == base.weights_digest
    assert other.tokenizer_digest != base.tokenizer_digest

    # The same weights under another architecture setting are another model.
    shutil.copytree(tiny_folder, tmp_path / "config")
    file = tmp_path / "config" / "config.json"
    config = json.loads(file.read_text()) | {"rms_norm_eps": 0.1}
    file.write_text(json.dumps(config))
    other = load_base_model(tmp_path / "config", device="cpu")
    assert other.weights_digest != base.weights_digest


def test_a_tokenizer_without_padding_pads_with_eos(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(pad_token=None)
    loaded = load_base_model(save_tiny(tmp_path / "m", tokenizer=tokenizer), device="cpu")
    assert loaded.tokenizer.pad_token == "<|im_end|>"


def message(name: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load_base_model(name, **options)
    return str(error.value)


def test_missing_folder_says_where(tmp_path: Path, monkeypatch: Any) -> None:
    text = message(tmp_path / "none")
    assert "was not found" in text
    assert str(tmp_path / "none") in text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = message("someone/no-such-model")
    assert "local model cache" in text
    assert "was not found" in text
    assert "was not found" in message("./nowhere")


def test_folders_without_a_model_are_named(tmp_path: Path, tiny_folder: Path) -> None:
    assert "config.json is missing" in message(tmp_path)
    shutil.copytree(tiny_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert "cannot be loaded" in message(tmp_path / "m")


def test_options_that_cannot_work(tiny_folder: Path) -> None:
    assert "float64" in message(tiny_folder, dtype="float64")
    assert "tpu" in message(tiny_folder, device="tpu")
    assert "CUDA_VISIBLE_DEVICES" in message(tiny_folder, device="cuda:1")
    if not torch.cuda.is_available():
        assert "no GPU" in message(tiny_folder, device="cuda")
