"""Round 0: one epoch of supervised fine-tuning on the chosen responses, on TRL's SFTTrainer.

The loss of a step is the mean over all response tokens of its accumulation group.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from fedpref.adapter_state import AdapterSpec, AdapterState
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

_IGNORED = -100


class ResponseTrainer(PhaseMixin, SFTTrainer):  # type: ignore[misc]
    """TRL's SFT trainer over ready-made token ids and labels."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # TRL's loss divides by the group's token count whenever it is given one; transformers only
        # counts if the model's forward takes extra arguments, which says nothing about TRL's loss.
        self.model_accepts_loss_kwargs = True


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
    rows = rows_of([_row(pair) for pair in pairs])

    def make_trainer(model: PreTrainedModel, folder: str) -> ResponseTrainer:
        arguments = SFTConfig(
            **training_arguments(
                base,
                settings,
                learning_rate=settings.sft_learning_rate,
                pairs=len(pairs),
                seed=seed,
                output_dir=folder,
            ),
            packing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        return ResponseTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=base.tokenizer,
            data_collator=RowCollator(
                DataCollatorForLanguageModeling(pad_token_id=base.tokenizer.pad_token_id)
            ),
            peft_config=lora_config(spec),
        )

    return run_phase(base, spec, state, make_trainer, adjustment)


def _row(pair: EncodedPair) -> dict[str, list[int]]:
    prompt, chosen = list(pair.prompt_ids), list(pair.chosen_ids)
    return {"input_ids": prompt + chosen, "labels": [_IGNORED] * len(prompt) + chosen}
