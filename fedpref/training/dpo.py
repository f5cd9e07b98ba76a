"""Rounds 1–3: one epoch of direct preference optimisation, on TRL's DPOTrainer.

Loss of a pair: -log sigmoid(beta·[(log π(c) − log π_ref(c)) − (log π(r) − log π_ref(r))]), each
log-prob summed over response tokens; of a step: the mean over the pairs of its accumulation group.
The reference log-probs are given: no reference model or adapter exists here. On the tree engine a
group's pairs share what their prompts and responses have in common (see `preference_tree`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import TrainingError
from fedpref.training.adapter import lora_config
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import TreeLimits, pair_sequences, trees_of
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


class FixedReferenceTrainer(PhaseMixin, DPOTrainer):  # type: ignore[misc]
    """TRL's DPO trainer over ready-made token ids with stored reference log-probs, pair by pair.

    Given the bare model and a LoRA configuration, TRL makes no "ref" adapter. It is told only
    after its construction that the reference columns are there: it would compute them itself.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.precompute_ref_logps = True

    def _prepare_dataset(
        self, dataset: Dataset, processing_class: Any, args: Any, dataset_name: str
    ) -> Dataset:
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        """Refuse: the reference is fixed and stored, a second one would be another."""
        raise TrainingError("a reference forward was asked for during training")


class PreferenceTreeTrainer(TreeMixin, FixedReferenceTrainer):
    """TRL's DPO trainer over the trees of a group: the same loss, and TRL's names in its log."""

    def part_loss(self, logps: torch.Tensor, part: TreePart) -> torch.Tensor:
        """Return the sum of the pairs' losses over the pairs of the group."""
        assert part.reference is not None
        gains = self.beta * (logps - part.reference.to(logps))
        chosen, rejected = gains[0::2], gains[1::2]
        shown = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "rewards/accuracies": (chosen > rejected).to(chosen),
            "logps/chosen": logps[0::2],
            "logps/rejected": logps[1::2],
        }
        # A value a pair: TRL logs the mean of what is listed, and trees differ in their pairs.
        for name, values in zip(shown, torch.stack([*shown.values()]).tolist(), strict=True):
            self._metrics["train"][name].extend(values)
        return -torch.nn.functional.logsigmoid(chosen - rejected).sum() / part.whole


def train_dpo(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    reference: Mapping[str, tuple[float, float]],
    settings: "TrainingSettings",
    *,
    seed: int = 0,
    adjustment: Adjustment = AS_USUAL,
) -> Trained | None:
    """Return the adapter after one epoch from `state` over `pairs`, in order.

    `reference` gives the root's log-probs (chosen, rejected) of each pair id, as
    `reference.reference_logps` returns them. None if there are no pairs. `seed` and errors are as
    for `train_sft`; a pair without a reference is a TrainingError.
    """
    if not pairs:
        return None
    for pair in pairs:
        if pair.pair_id not in reference:
            raise TrainingError(
                "a pair has no reference log-probs",
                fix="compute them for the same pairs with reference_logps",
            )
    trees = uses_trees(base.model, settings)

    def make_trainer(model: PreTrainedModel, folder: str) -> FixedReferenceTrainer:
        arguments = DPOConfig(
            **training_arguments(
                base,
                settings,
                learning_rate=settings.dpo_learning_rate,
                pairs=len(pairs),
                whole_groups=trees,
                seed=seed,
                output_dir=folder,
            ),
            beta=settings.beta,
            loss_type=["sigmoid"],
            precompute_ref_log_probs=False,
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
            return PreferenceTreeTrainer(
                train_dataset=rows_of([{}] * len(pairs)),
                data_collator=TreeCollator(pairs, lambda group: _parts(group, reference, limits)),
                **kwargs,
            )
        collator = DataCollatorForPreference(pad_token_id=base.tokenizer.pad_token_id)
        return FixedReferenceTrainer(
            train_dataset=rows_of([_row(pair, *reference[pair.pair_id]) for pair in pairs]),
            data_collator=RowCollator(collator),
            **kwargs,
        )

    return run_phase(base, spec, state, make_trainer, adjustment)


def _parts(
    group: Sequence[EncodedPair], reference: Mapping[str, tuple[float, float]], limits: TreeLimits
) -> list[TreePart]:
    return [
        TreePart(tree, len(group), _reference_of(run, reference))
        for run, tree in trees_of(group, pair_sequences, limits)
    ]


def _reference_of(
    run: Sequence[EncodedPair], reference: Mapping[str, tuple[float, float]]
) -> torch.Tensor:
    """Return the log-probs of the run's sequences as they were computed: Python's floats."""
    return torch.tensor([x for pair in run for x in reference[pair.pair_id]], dtype=torch.float64)


def _row(pair: EncodedPair, chosen_logp: float, rejected_logp: float) -> dict[str, Any]:
    return {
        "prompt_ids": list(pair.prompt_ids),
        "chosen_ids": list(pair.chosen_ids),
        "rejected_ids": list(pair.rejected_ids),
        "ref_chosen_logps": chosen_logp,
        "ref_rejected_logps": rejected_logp,
    }
