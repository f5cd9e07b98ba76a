"""Log-probs of whole responses: of the fixed reference, stored by content, and for evaluation.

They come from the same engine, the same runs of pairs and the same precision as the training's, so
that the first DPO step after round 0 sees equal numbers on both sides.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

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
from fedpref.training.preference_tree import TokenTree, pair_sequences, trees_of
from fedpref.training.roots import METHOD_VERSION
from fedpref.training.session import model_session
from fedpref.training.tree_forward import (
    response_logps,
    tree_limits,
    use_block_attention,
    uses_trees,
)

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings

Logps = tuple[float, float]
PairLogps = dict[str, Logps]
# Pairs that are computed together, with their tree; None for a pair by itself on TRL's engine.
_Run = tuple[Sequence[EncodedPair], TokenTree | None]


def sequence_logps(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: "TrainingSettings",
) -> PairLogps:
    """Return log π(chosen|prompt) and log π(rejected|prompt) by pair id, in nats.

    Summed over the response tokens through the end of turn, under the base with the adapter
    `state`. Pairs are computed in the groups in which they are trained; which pairs those are may
    change the last bits.
    """
    if not pairs:
        return {}
    runs = list(_runs(base, pairs, settings))
    computed = _compute(base, spec, state, runs)
    return {
        pair.pair_id: logps
        for (together, _), values in zip(runs, computed, strict=True)
        for pair, logps in zip(together, values, strict=True)
    }


def reference_logps(
    base: BaseModel,
    spec: AdapterSpec,
    root_state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: "TrainingSettings",
    store_dir: Path,
) -> PairLogps:
    """Return the root's log-probs of each pair; only what is not yet stored costs a forward.

    The store is one file a root in `store_dir`, named by the hash of all that the numbers depend on
    (method, base weights, tokenizer, root, LoRA scale, precision, kind of device, engine). Its rows
    are keyed by the hash of the token ids that are computed together, so that a changed pair costs
    its group and the others nothing. Floats come back exactly as they were computed.
    """
    path = store_dir / f"{_store_key(base, spec, root_state, settings)}.jsonl"
    stored = _read(path) if path.exists() else {}
    # Pairs of other ids can have the same tokens, where a tokenizer drops what tells texts apart.
    runs = [(_run_key(run), run) for run in _runs(base, pairs, settings)]
    new = {key: run for key, run in runs if key not in stored}
    if new:
        stored |= zip(new, _compute(base, spec, root_state, list(new.values())), strict=True)
        if not all(abs(v) < float("inf") for run in stored.values() for both in run for v in both):
            raise TrainingError(
                "the reference gives a response a log-prob that is no number",
                why="the root adapter or the base model is damaged",
            )
        write_jsonl(path, ({"run": key, "logps": stored[key]} for key in sorted(stored)))
    return {
        pair.pair_id: logps
        for key, (together, _) in runs
        for pair, logps in zip(together, stored[key], strict=True)
    }


def _runs(
    base: BaseModel, pairs: Sequence[EncodedPair], settings: "TrainingSettings"
) -> Iterator[_Run]:
    """Yield the pairs as training computes them together."""
    if not uses_trees(base.model, settings):
        yield from (([pair], None) for pair in pairs)
        return
    limits = tree_limits(base.model, settings.max_tree_tokens)
    for start in range(0, len(pairs), settings.accumulation):
        yield from trees_of(pairs[start : start + settings.accumulation], pair_sequences, limits)


def _compute(
    base: BaseModel, spec: AdapterSpec, state: AdapterState, runs: Sequence[_Run]
) -> list[list[Logps]]:
    """Return the log-probs (chosen, rejected) of each pair of each run."""
    if not runs:
        return []
    collate = DataCollatorForPreference(pad_token_id=base.tokenizer.pad_token_id)
    autocast = (
        torch.autocast(base.device_type, dtype=torch.bfloat16)
        if base.dtype == "bfloat16"
        else nullcontext()
    )
    with model_session(base) as bare:
        if runs[0][1] is None:
            add_fused_lm_head(bare)
        else:
            use_block_attention(bare)
        model = attach(bare, spec)
        load_state(model, spec, state)
        model.eval()
        with torch.no_grad(), autocast:
            return [
                _of_tree(model, tree)
                if tree is not None
                else [_of_pair(model, collate, together[0], base.device)]
                for together, tree in runs
            ]


def _of_tree(model: torch.nn.Module, tree: TokenTree) -> list[Logps]:
    chosen_rejected: list[Logps] = response_logps(model, tree).view(-1, 2).tolist()
    return [(chosen, rejected) for chosen, rejected in chosen_rejected]


def _of_pair(
    model: torch.nn.Module, collate: DataCollatorForPreference, pair: EncodedPair, device: str
) -> Logps:
    """Return the numbers of TRL's own collator, batch and fused head for this pair."""
    batch = collate(
        [
            {
                "prompt_ids": list(pair.prompt_ids),
                "chosen_ids": list(pair.chosen_ids),
                "rejected_ids": list(pair.rejected_ids),
            }
        ]
    )
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    mask = batch.pop("completion_mask")
    labels = batch["input_ids"].masked_fill(mask == 0, -100)
    output = model(**batch, labels=labels, use_cache=False, fused_lm_head=True)
    chosen, rejected = output.log_probs.sum(dim=1).tolist()
    return chosen, rejected


def _store_key(
    base: BaseModel, spec: AdapterSpec, root_state: AdapterState, settings: "TrainingSettings"
) -> str:
    return digest(
        {
            "method": METHOD_VERSION,
            "engine": settings.engine,
            "weights": base.weights_digest,
            "tokenizer": base.tokenizer_digest,
            "dtype": base.dtype,
            "device": base.device_type,
            "spec": spec.digest,
            "root": state_digest(root_state),
        }
    )


def _run_key(run: _Run) -> str:
    return digest([[list(p.prompt_ids), list(p.chosen_ids), list(p.rejected_ids)] for p in run[0]])


def _read(path: Path) -> dict[str, list[Logps]]:
    try:
        return {
            row["run"]: [(float(chosen), float(rejected)) for chosen, rejected in row["logps"]]
            for _, row in read_jsonl(path)
        }
    except (KeyError, TypeError, ValueError, json.JSONDecodeError):
        raise DataError(
            "the stored reference log-probs are malformed",
            file=path,
            fix="delete the file; it is computed again",
        ) from None
