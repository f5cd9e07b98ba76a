"""Round-0 roots, stored by the hash of all that determines them; torch-free.

FedPref, Local, every strategy and a resumed run find the same root and never train it twice.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedpref.adapter_state import AdapterSpec, load_adapter, save_adapter, state_digest
from fedpref.errors import AdapterError
from fedpref.files import atomic_dir
from fedpref.hashing import digest
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.trained import Trained

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings

_ADAPTER = "adapter"
_RECORD = "root.json"
# Part of the key of all that is stored of training, roots and reference log-probs. Raised whenever
# the same inputs would give other numbers, for example by another optimiser or another sum.
METHOD_VERSION: Final = 2


def root_key(
    *,
    weights_digest: str,
    tokenizer_digest: str,
    prompt_digest: str,
    pairs_digest: str,
    initial_digest: str,
    spec: AdapterSpec,
    settings: "TrainingSettings",
    dtype: str,
    device_type: str,
    seed: int,
    adjustment: Adjustment = AS_USUAL,
) -> str:
    """Return the hash of all that determines the root that `train_sft` makes.

    Of the settings only those count that act in round 0. A strategy that leaves the training as it
    is shares the roots of all others that do.
    """
    return digest(
        {
            "method": METHOD_VERSION,
            "weights": weights_digest,
            "tokenizer": tokenizer_digest,
            "prompt": prompt_digest,
            "pairs": pairs_digest,
            "initial": initial_digest,
            "spec": spec.digest,
            "dtype": dtype,
            "device": device_type,
            "seed": seed,
            "settings": {
                "engine": settings.engine,
                "max_tree_tokens": settings.max_tree_tokens,
                "sft_learning_rate": settings.sft_learning_rate,
                "accumulation": settings.accumulation,
                "warmup_ratio": settings.warmup_ratio,
                "max_length": settings.max_length,
                "on_too_long": settings.on_too_long,
                "gradient_checkpointing": settings.gradient_checkpointing,
                "threads": settings.threads,
            },
            **adjustment.to_dict(),
        }
    )


def load_root(roots_dir: Path, key: str, spec: AdapterSpec) -> Trained | None:
    """Return the stored root, bit for bit, or None; raises AdapterError if it is damaged."""
    folder = roots_dir / key
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        state = load_adapter(folder / _ADAPTER, spec)
        if state_digest(state) != record.pop("state_digest"):
            raise AdapterError("the content hash differs")
        return Trained(state=state, **record)
    except (OSError, ValueError, KeyError, TypeError, AdapterError) as error:
        raise AdapterError(
            "the stored root is damaged",
            file=folder,
            why=str(error),
            fix="delete the folder; the root is trained again",
        ) from None


def store_root(
    roots_dir: Path, key: str, spec: AdapterSpec, trained: Trained, base_name: str
) -> None:
    """Store the root under its key, atomically; the adapter is in PEFT's format."""
    record = {k: v for k, v in asdict(trained).items() if k != "state"}
    record["state_digest"] = state_digest(trained.state)
    with atomic_dir(roots_dir / key) as part:
        save_adapter(part / _ADAPTER, trained.state, spec, base_name)
        (part / _RECORD).write_text(json.dumps(record, sort_keys=True) + "\n", encoding="utf-8")
