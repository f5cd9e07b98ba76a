"""Rounds 1–3: one epoch of direct preference optimisation, on TRL's DPOTrainer.

Loss of a pair: -log sigmoid(beta·[(log π(c) − log π_ref(c)) − (log π(r) − log π_ref(r))]), each
log-prob summed over response tokens; of a step: the mean over the pairs of its accumulation group.
The reference log-probs are given: no reference model or adapter exists here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from fedpref.training.trained import Trained
from fedpref.training.trainer import (
    PhaseMixin,
    RowCollator,
    rows_of,
    run_phase,
    training_arguments,
)

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings


class FixedReferenceTrainer(PhaseMixin, DPOTrainer):  # type: ignore[misc]
    """TRL's DPO trainer over ready-made token ids with stored reference log-probs.

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
    rows = rows_of([_row(pair, reference) for pair in pairs])

    def make_trainer(model: PreTrainedModel, folder: str) -> FixedReferenceTrainer:
        arguments = DPOConfig(
            **training_arguments(
                base,
                settings,
                learning_rate=settings.dpo_learning_rate,
                pairs=len(pairs),
                seed=seed,
                output_dir=folder,
            ),
            beta=settings.beta,
            loss_type=["sigmoid"],
            precompute_ref_log_probs=False,
        )
        return FixedReferenceTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=base.tokenizer,
            data_collator=RowCollator(
                DataCollatorForPreference(pad_token_id=base.tokenizer.pad_token_id)
            ),
            peft_config=lora_config(spec),
        )

    return run_phase(base, spec, state, make_trainer, adjustment)


def _row(pair: EncodedPair, reference: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    if pair.pair_id not in reference:
        raise TrainingError(
            f"pair {pair.pair_id} has no reference log-probs",
            fix="compute them for the same pairs with reference_logps",
        )
    chosen, rejected = reference[pair.pair_id]
    return {
        "prompt_ids": list(pair.prompt_ids),
        "chosen_ids": list(pair.chosen_ids),
        "rejected_ids": list(pair.rejected_ids),
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
