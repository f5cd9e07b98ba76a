"""The frozen base model and its tokenizer: found, loaded once per process, known by hash."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from fedpref.demo import DEMO_MODEL, DEMO_MODEL_FOLDER
from fedpref.errors import ModelError
from fedpref.hashing import digest, digest_bytes, digest_file
from fedpref.training.quiet import quiet

_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin")
# What from_pretrained adds to a configuration without any effect on the numbers.
_VOLATILE: Final = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A loaded base model. Nobody changes it: `training.session` restores it after each use.

    `weights_digest` covers the weight files and the architecture's configuration,
    `tokenizer_digest` the tokenizer and its chat template. `dtype` is what the weights are held in.
    `threads` is the number of CPU threads that each session pins: with equal numbers two processes
    get equal bits.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    path: Path
    weights_digest: str
    tokenizer_digest: str
    device: str
    dtype: str
    threads: int

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    @property
    def context(self) -> int | None:
        """How many tokens the model can take, None if its configuration does not say."""
        told = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return told if isinstance(told, int) and told > 0 else None


_loaded: dict[tuple[Path, str, str, int], BaseModel] = {}


def load_base_model(
    name_or_path: str | Path, *, dtype: str = "auto", device: str = "auto", threads: int = 1
) -> BaseModel:
    """Return the base model, in float32 on a CPU and bfloat16 on CUDA unless told otherwise.

    `name_or_path` is "demo" (the bundled model), a folder, or a name on the model hub, which is
    looked for in the local cache before the network. Loaded once per process and settings. Raises
    ModelError that says what was looked for and where.
    """
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    kind = device.partition(":")[0]
    dtype = ("bfloat16" if kind == "cuda" else "float32") if dtype == "auto" else dtype
    if dtype not in _DTYPES or kind not in {"cpu", "cuda"}:
        raise ModelError(
            f"dtype {dtype!r} on device {device!r} is not supported",
            fix="set dtype to auto, float32 or bfloat16 and device to auto, cpu or cuda",
        )
    if kind == "cuda" and device not in {"cuda", "cuda:0"}:
        raise ModelError(
            f"device {device!r} is not supported",
            why="transformers' trainers take the first GPU that they see",
            fix="let the process see one GPU only: CUDA_VISIBLE_DEVICES=<n>, and device = 'cuda'",
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r} was asked for, but torch sees no GPU", fix="use 'auto'"
        )
    path = _find(name_or_path)
    key = (path, dtype, device, threads)
    if key not in _loaded:
        _loaded[key] = _load(str(name_or_path), path, dtype, device, threads)
    return _loaded[key]


def _find(name_or_path: str | Path) -> Path:
    """Return the folder with the model's files."""
    name = str(name_or_path)
    path = DEMO_MODEL_FOLDER if name == DEMO_MODEL else Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                "the folder holds no model",
                file=path,
                why="config.json is missing",
                fix="give a folder written by save_pretrained (model and tokenizer)",
            )
        return path.resolve()
    looks_like_path = isinstance(name_or_path, Path) or name == DEMO_MODEL or name[:1] in "./~\\"
    if not looks_like_path:
        try:
            return Path(snapshot_download(name, local_files_only=True)).resolve()
        except (LocalEntryNotFoundError, HFValidationError):
            pass
        if not _offline():
            try:
                return Path(snapshot_download(name)).resolve()
            except Exception as error:  # network, name, licence: all end in one message
                raise ModelError(
                    f"the base model {name!r} cannot be fetched",
                    why=f"it is no folder, not in the local cache, and the model hub answered with "
                    f"{type(error).__name__}",
                    fix="download the model to a folder and give its path",
                ) from None
    raise ModelError(
        f"the base model {name!r} was not found",
        why=f"there is no folder {path.absolute()}"
        + ("" if looks_like_path else ", and the local model cache does not hold that name"),
        fix="give the path of a folder with config.json, weights and tokenizer, or 'demo'",
    )


def _offline() -> bool:
    return any(
        os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _load(name: str, path: Path, dtype: str, device: str, threads: int) -> BaseModel:
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            tokenizer_digest = _tokenizer_digest(tokenizer)
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=_DTYPES[dtype], local_files_only=True
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            "the base model cannot be loaded",
            file=path,
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            fix="the folder must hold config.json, weights and the tokenizer's files",
        ) from None
    if tokenizer.pad_token is None:
        # Padding is masked everywhere, so any token will do; only its presence is needed.
        tokenizer.pad_token = tokenizer.eos_token
    torch.nn.Module.to(model, torch.device(device))
    model.eval()
    model.requires_grad_(False)
    return BaseModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        path=path,
        weights_digest=_weights_digest(path),
        tokenizer_digest=tokenizer_digest,
        device=device,
        dtype=dtype,
        threads=threads,
    )


def _weights_digest(path: Path) -> str:
    """Return the hash of the weight files' contents and of the configuration without its noise."""
    config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    files = sorted(p for p in path.iterdir() if p.suffix in _WEIGHT_SUFFIXES and p.is_file())
    if not files:
        raise ModelError("the folder holds no weights", file=path, why="no *.safetensors or *.bin")
    stats = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return digest(
        {
            "config": {key: value for key, value in config.items() if key not in _VOLATILE},
            "files": {file.name: _file_digest(file, size, time) for file, size, time in stats},
        }
    )


@cache
def _file_digest(file: Path, size: int, mtime_ns: int) -> str:
    # Size and time are part of the key only, so that a replaced file is read again.
    return digest_file(file)


def _tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the hash of what turns messages into tokens: vocabulary, rules, specials, template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab()))
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return digest(
        {
            "rules": digest_bytes(rules.encode("utf-8", "surrogatepass")),
            "specials": specials,
            "template": str(tokenizer.chat_template),
        }
    )
