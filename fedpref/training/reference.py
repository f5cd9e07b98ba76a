"""Log-probs of whole responses: of the fixed reference, stored by content, and for evaluation.

They come from the same collator, batch (the two responses of one pair), fused head and precision as
TRL's loss, so that the first DPO step after round 0 sees equal numbers on both sides.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.utils import add_fused_lm_head

from fedpref.adapter_state import AdapterSpec, AdapterState, state_digest
from fedpref.errors import DataError, TrainingError
from fedpref.files import read_jsonl, write_jsonl
from fedpref.hashing import digest
from fedpref.training.adapter import attach, load_state
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.session import model_session

PairLogps = dict[str, tuple[float, float]]


def sequence_logps(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    *,
    batch_size: int = 1,
) -> PairLogps:
    """Return log π(chosen|prompt) and log π(rejected|prompt) by pair id, in nats.

    Summed over the response tokens through the end of turn, under the base with the adapter
    `state`. By default each pair is its own batch, so that a pair's numbers do not depend on the
    others; larger batches of pairs of like length are faster and may differ in the last bits.
    """
    if not pairs:
        return {}
    collate = DataCollatorForPreference(pad_token_id=base.tokenizer.pad_token_id)
    autocast = (
        torch.autocast(torch.device(base.device).type, dtype=torch.bfloat16)
        if base.dtype == "bfloat16"
        else nullcontext()
    )
    result: PairLogps = {}
    ordered = pairs if batch_size == 1 else sorted(pairs, key=_length)
    with model_session(base) as bare:
        add_fused_lm_head(bare)
        model = attach(bare, spec)
        load_state(model, spec, state)
        model.eval()
        with torch.no_grad(), autocast:
            for start in range(0, len(ordered), batch_size):
                together = ordered[start : start + batch_size]
                logps = _forward(model, collate, together, base.device)
                result |= zip((pair.pair_id for pair in together), logps, strict=True)
    return result


def _length(pair: EncodedPair) -> int:
    return len(pair.prompt_ids) + max(len(pair.chosen_ids), len(pair.rejected_ids))


def _forward(
    model: torch.nn.Module,
    collate: DataCollatorForPreference,
    pairs: Sequence[EncodedPair],
    device: str,
) -> list[tuple[float, float]]:
    batch = collate(
        [
            {
                "prompt_ids": list(pair.prompt_ids),
                "chosen_ids": list(pair.chosen_ids),
                "rejected_ids": list(pair.rejected_ids),
            }
            for pair in pairs
        ]
    )
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    mask = batch.pop("completion_mask")
    labels = batch["input_ids"].masked_fill(mask == 0, -100)
    output = model(**batch, labels=labels, use_cache=False, fused_lm_head=True)
    # The collator stacks all chosen responses on all rejected ones.
    chosen, rejected = output.log_probs.sum(dim=1).view(2, len(pairs)).tolist()
    return list(zip(chosen, rejected, strict=True))


def reference_logps(
    base: BaseModel,
    spec: AdapterSpec,
    root_state: AdapterState,
    pairs: Sequence[EncodedPair],
    store_dir: Path,
) -> PairLogps:
    """Return the root's log-probs of each pair; only pairs not yet stored cost a forward.

    The store is one file a root in `store_dir`, named by the hash of all that the numbers depend on
    (base weights, tokenizer, root, LoRA scale, precision); its rows are keyed by the hash of the
    token ids. Floats come back exactly as they were computed.
    """
    path = store_dir / f"{_store_key(base, spec, root_state)}.jsonl"
    stored = _read(path) if path.exists() else {}
    keys = {pair.pair_id: _pair_key(pair) for pair in pairs}
    new = {keys[pair.pair_id]: pair for pair in pairs if keys[pair.pair_id] not in stored}
    if new:
        computed = sequence_logps(base, spec, root_state, list(new.values()))
        for key, pair in new.items():
            stored[key] = computed[pair.pair_id]
        if not all(abs(value) < float("inf") for both in stored.values() for value in both):
            raise TrainingError(
                "the reference gives a response a log-prob that is no number",
                why="the root adapter or the base model is damaged",
            )
        write_jsonl(
            path, ({"pair": k, "chosen": c, "rejected": r} for k, (c, r) in sorted(stored.items()))
        )
    return {pair.pair_id: stored[keys[pair.pair_id]] for pair in pairs}


def _store_key(base: BaseModel, spec: AdapterSpec, root_state: AdapterState) -> str:
    return digest(
        {
            "weights": base.weights_digest,
            "tokenizer": base.tokenizer_digest,
            "dtype": base.dtype,
            "spec": spec.digest,
            "root": state_digest(root_state),
        }
    )


def _pair_key(pair: EncodedPair) -> str:
    return digest([list(pair.prompt_ids), list(pair.chosen_ids), list(pair.rejected_ids)])


def _read(path: Path) -> PairLogps:
    try:
        return {
            row["pair"]: (float(row["chosen"]), float(row["rejected"]))
            for _, row in read_jsonl(path)
        }
    except (KeyError, TypeError, ValueError, json.JSONDecodeError):
        raise DataError(
            "the stored reference log-probs are malformed",
            file=path,
            fix="delete the file; it is computed again",
        ) from None
