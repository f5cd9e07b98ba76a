"""LoRA adapters as plain numpy: what they must look like, where they start, how they travel.

An adapter state maps PEFT's keys to float32 arrays. Nothing here needs torch, so the server and the
sites compute the very same initial adapter, digests and wire layout.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedpref.errors import AdapterError
from fedpref.files import atomic_dir
from fedpref.hashing import digest

AdapterState = dict[str, NDArray[np.float32]]

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True)
class AdapterSpec:
    """The shape of an adapter: what both ends of the wire must agree on.

    `keys` are PEFT's state keys in sorted order and `shapes` their shapes in the same order;
    `targets` are the module names that carry a LoRA pair.
    """

    rank: int
    alpha: float
    rslora: bool
    targets: tuple[str, ...]
    keys: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if list(self.keys) != sorted(set(self.keys)) or len(self.keys) != len(self.shapes):
            raise AdapterError(
                "the adapter specification is malformed",
                why="its keys are not sorted, not distinct, or do not match its shapes",
            )

    @property
    def scale(self) -> float:
        """The factor of B·A in the forward: alpha / r, or alpha / sqrt(r) for rsLoRA."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def parameter_count(self) -> int:
        """The number of float32 values in a state."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def places(self) -> dict[str, slice]:
        """Where each tensor lies in the flat layout, by key in order."""
        ends = list(accumulate((math.prod(shape) for shape in self.shapes), initial=0))
        return {key: slice(*place) for key, place in zip(self.keys, pairwise(ends), strict=True)}

    def at_rank(self, rank: int) -> "AdapterSpec":
        """Return the same layers and scale at another rank, which may be 0."""
        if rank == self.rank:
            return self
        shapes = (
            (rank, *shape[1:]) if ".lora_A." in key else (shape[0], rank, *shape[2:])
            for key, shape in zip(self.keys, self.shapes, strict=True)
        )
        alpha = self.scale * (math.sqrt(rank) if self.rslora else rank)
        return replace(self, rank=rank, alpha=alpha, shapes=tuple(shapes))

    @property
    def digest(self) -> str:
        """The content hash of the specification."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON value that `from_dict` reads back."""
        return json.loads(json.dumps(asdict(self) | {"alpha": float(self.alpha)}))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "AdapterSpec":
        """Return the specification that `to_dict` wrote; raises AdapterError if malformed."""
        try:
            return cls(
                rank=int(value["rank"]),
                alpha=float(value["alpha"]),
                rslora=bool(value["rslora"]),
                targets=tuple(str(name) for name in value["targets"]),
                keys=tuple(str(key) for key in value["keys"]),
                shapes=tuple(tuple(int(n) for n in shape) for shape in value["shapes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise AdapterError(
                "the adapter specification is malformed",
                why=f"{type(error).__name__} while reading it",
                fix="both ends must run the same fedpref version",
            ) from None


def initial_state(spec: AdapterSpec, seed: int) -> AdapterState:
    """Return the untrained adapter: A uniform in ±1/sqrt(fan-in), B zero.

    The bound is that of PEFT's default (kaiming uniform with a = sqrt 5). Every key draws from its
    own Philox stream, keyed by the hash of (seed, key), and the floats are made from the raw 64-bit
    words, whose stream numpy guarantees; so the bits do not depend on the numpy version, on other
    keys or on torch.
    """
    state: AdapterState = {}
    for key, shape in zip(spec.keys, spec.shapes, strict=True):
        if ".lora_B." in key:
            state[key] = np.zeros(shape, dtype=np.float32)
            continue
        words = hashlib.sha256(f"{seed}:{key}".encode()).digest()
        philox = np.random.Philox(key=np.frombuffer(words[:16], dtype="<u8").astype(np.uint64))
        raw = philox.random_raw(math.prod(shape))
        unit = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-24  # [0, 1) on a grid of 2^24
        bound = 1.0 / math.sqrt(shape[1])
        state[key] = ((2.0 * unit - 1.0) * bound).astype(np.float32).reshape(shape)
    return state


def state_digest(state: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash of keys, dtypes, shapes and bytes, independent of the mapping's order."""
    hasher = hashlib.sha256()
    for key in sorted(state):
        array = np.ascontiguousarray(state[key])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        hasher.update(f"{key}|{little.dtype.str}|{array.shape}|".encode())
        hasher.update(little.tobytes())
    return hasher.hexdigest()


def check_state(state: Mapping[str, NDArray[Any]], spec: AdapterSpec) -> None:
    """Raise AdapterError unless `state` has the keys and shapes of `spec`, float32 and finite."""
    expected = dict(zip(spec.keys, spec.shapes, strict=True))
    if missing := sorted(expected.keys() - state.keys()):
        raise AdapterError(
            f"the adapter lacks {len(missing)} of {len(expected)} tensors",
            key=missing[0],
            fix="send the complete LoRA state with PEFT's keys",
        )
    if extra := sorted(state.keys() - expected.keys()):
        raise AdapterError(f"the adapter has {len(extra)} tensors too many", key=extra[0])
    for key, shape in expected.items():
        array = state[key]
        if tuple(array.shape) != shape:
            raise AdapterError(
                f"the tensor has shape {tuple(array.shape)}, expected {shape}",
                key=key,
                fix="every site must use the same base model, LoRA rank and targets",
            )
        if array.dtype != np.float32:
            raise AdapterError(f"the tensor is {array.dtype}, expected float32", key=key)
        if not np.isfinite(array).all():
            raise AdapterError("the tensor holds NaN or infinity", key=key)


def pack(state: Mapping[str, NDArray[Any]], spec: AdapterSpec) -> NDArray[np.float32]:
    """Return the whole state as one float32 vector, in the key order of `spec`."""
    check_state(state, spec)
    if not spec.keys:
        return np.zeros(0, dtype=np.float32)
    return np.concatenate([np.ravel(state[key]) for key in spec.keys])


def unpack(flat: NDArray[Any], spec: AdapterSpec) -> AdapterState:
    """Return the state that `pack` flattened, as views; raises AdapterError on length or dtype.

    Finiteness is not looked at here: `check_state` does that where a fault can be attributed.
    """
    if flat.ndim != 1 or flat.size != spec.parameter_count or flat.dtype != np.float32:
        raise AdapterError(
            f"the flat adapter has shape {tuple(flat.shape)} and dtype {flat.dtype}, "
            f"expected ({spec.parameter_count},) float32",
            fix="every site must use the same base model, LoRA rank and targets",
        )
    return {
        key: flat[place].reshape(shape)
        for (key, place), shape in zip(spec.places.items(), spec.shapes, strict=True)
    }


def save_adapter(path: Path, state: AdapterState, spec: AdapterSpec, base_name: str) -> None:
    """Write the adapter in PEFT's format to the folder `path`, atomically.

    `PeftModel.from_pretrained(base, path)` loads it. `base_name` is recorded for the reader.
    """
    check_state(state, spec)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "use_rslora": spec.rslora,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(spec.targets),
        "inference_mode": True,
    }
    with atomic_dir(path) as part:
        tensors = {key: np.ascontiguousarray(state[key]) for key in spec.keys}
        save_file(tensors, part / WEIGHTS_FILE, metadata={"format": "pt"})
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (part / CONFIG_FILE).write_text(text, encoding="utf-8", newline="\n")


def load_adapter(path: Path, spec: AdapterSpec) -> AdapterState:
    """Return the adapter of a folder in PEFT's format; AdapterError unless it fits `spec`."""
    try:
        config = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        state = load_file(path / WEIGHTS_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterError(
            "the adapter cannot be read",
            file=path,
            why=f"{type(error).__name__} in {CONFIG_FILE} or {WEIGHTS_FILE}",
            fix="give a folder written by save_adapter or by PEFT",
        ) from None
    found = (config.get("r"), float(config.get("lora_alpha", 0)), bool(config.get("use_rslora")))
    expected = (spec.rank, float(spec.alpha), spec.rslora)
    if found != expected:
        raise AdapterError(
            f"the adapter has (r, alpha, rsLoRA) = {found}, expected {expected}", file=path
        )
    check_state(state, spec)
    return {key: state[key] for key in spec.keys}
