"""Round 0: one epoch of supervised fine-tuning on the chosen responses, on TRL's SFTTrainer.

The loss of a step is the mean over all response tokens of its accumulation group. On the tree
engine the sequences of a group share what their prompts have in common.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.training.adapter import lora_config
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import TreeLimits, chosen_sequences, trees_of
from fedpref.training.trained import Trained
from fedpref.training.trainer import (
    PhaseMixin,
    RowCollator,
    rows_of,
    run_phase,
    training_arguments,
)
from fedpref.training.tree_forward import tree_limits, use_block_attention, uses_trees
from fedpref.training.tree_trainer import TreeCollator, TreeMixin, TreePart

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings

_IGNORED = -100


class ResponseTrainer(PhaseMixin, SFTTrainer):  # type: ignore[misc]
    """TRL's SFT trainer over ready-made token ids and labels, one sequence a batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # TRL's loss divides by the group's token count whenever it is given one; transformers only
        # counts if the model's forward takes extra arguments, which says nothing about TRL's loss.
        self.model_accepts_loss_kwargs = True


class ResponseTreeTrainer(TreeMixin, ResponseTrainer):
    """TRL's SFT trainer over the trees of a group."""

    def part_loss(self, logps: torch.Tensor, part: TreePart) -> torch.Tensor:
        """Return the negative sum of log-probs, per response token of the group."""
        return -logps.sum() / part.whole


def train_sft(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: "TrainingSettings",
    *,
    seed: int = 0,
    adjustment: Adjustment = AS_USUAL,
) -> Trained | None:
    """Return the adapter after one epoch from `state` on the chosen responses, in order.

    None if there are no pairs. Nothing is random (no dropout, no shuffling): `seed` only seeds the
    generators that the libraries might ask. The base model is left as it was, bit for bit. Raises
    TrainingError if the loss is no number.
    """
    if not pairs:
        return None
    trees = uses_trees(base.model, settings)

    def make_trainer(model: PreTrainedModel, folder: str) -> ResponseTrainer:
        arguments = SFTConfig(
            **training_arguments(
                base,
                settings,
                learning_rate=settings.sft_learning_rate,
                pairs=len(pairs),
                whole_groups=trees,
                seed=seed,
                output_dir=folder,
            ),
            packing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        kwargs = {
            "model": model,
            "args": arguments,
            "processing_class": base.tokenizer,
            "peft_config": lora_config(spec),
        }
        if trees:
            limits = tree_limits(model, settings.max_tree_tokens)
            use_block_attention(model)
            return ResponseTreeTrainer(
                train_dataset=rows_of([{}] * len(pairs)),
                data_collator=TreeCollator(pairs, lambda group: _parts(group, limits)),
                **kwargs,
            )
        collator = DataCollatorForLanguageModeling(pad_token_id=base.tokenizer.pad_token_id)
        return ResponseTrainer(
            train_dataset=rows_of([_row(pair) for pair in pairs]),
            data_collator=RowCollator(collator),
            **kwargs,
        )

    return run_phase(base, spec, state, make_trainer, adjustment)


def _parts(group: Sequence[EncodedPair], limits: TreeLimits) -> list[TreePart]:
    tokens = sum(len(pair.chosen_ids) for pair in group)
    return [TreePart(tree, tokens) for _, tree in trees_of(group, chosen_sequences, limits)]


def _row(pair: EncodedPair) -> dict[str, list[int]]:
    prompt, chosen = list(pair.prompt_ids), list(pair.chosen_ids)
    return {"input_ids": prompt + chosen, "labels": [_IGNORED] * len(prompt) + chosen}
