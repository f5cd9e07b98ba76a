"""TRL's own trainers on ready-made token ids: what benchmarks/training.py compares FedPref with.

Arguments, schedule, optimiser, pairs and order are FedPref's, and so is the start: an adapter that
was trained before. Only TRL's tokenising is left out, here as in FedPref.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clock import seconds_now
from datasets import Dataset
from transformers import PrinterCallback, Trainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.config import TrainingSettings
from fedpref.training.adapter import attach, load_state
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.session import model_session
from fedpref.training.trainer import training_arguments

IGNORED = -100


def stock_sft(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: TrainingSettings,
) -> list[float]:
    """Train one epoch on the chosen responses, batch 1; return the loss of each optimiser step."""
    rows = [
        {
            "input_ids": [*pair.prompt_ids, *pair.chosen_ids],
            "labels": [IGNORED] * len(pair.prompt_ids) + list(pair.chosen_ids),
        }
        for pair in pairs
    ]
    with model_session(base) as bare, tempfile.TemporaryDirectory() as folder:
        model = attach(bare, spec)
        load_state(model, spec, state)
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                **_arguments(base, settings, settings.sft_learning_rate, len(pairs), folder),
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=base.tokenizer,
        )
        return _train(trainer)


class PreferenceTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer over token ids; it notes how long the reference took that comes beforehand."""

    reference_seconds = 0.0

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, *args: Any) -> Dataset:
        start = seconds_now(self.args.device)
        dataset = super()._precompute_ref_logps(*args)
        self.reference_seconds = seconds_now(self.args.device) - start
        return dataset


def stock_dpo(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    pairs: Sequence[EncodedPair],
    settings: TrainingSettings,
    *,
    precompute: bool,
) -> tuple[list[float], float]:
    """Train one epoch, batch 1; return each step's loss and the seconds of a reference beforehand.

    TRL makes the reference itself: a frozen second adapter, which is asked in every step, or, with
    `precompute`, once before the first.
    """
    rows = [
        {
            "prompt_ids": list(pair.prompt_ids),
            "chosen_ids": list(pair.chosen_ids),
            "rejected_ids": list(pair.rejected_ids),
        }
        for pair in pairs
    ]
    with model_session(base) as bare, tempfile.TemporaryDirectory() as folder:
        model = attach(bare, spec)
        load_state(model, spec, state)
        trainer = PreferenceTrainer(
            model=model,
            args=DPOConfig(
                **_arguments(base, settings, settings.dpo_learning_rate, len(pairs), folder),
                beta=settings.beta,
                loss_type=["sigmoid"],
                precompute_ref_log_probs=precompute,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=base.tokenizer,
        )
        return _train(trainer), trainer.reference_seconds


def _arguments(
    base: BaseModel, settings: TrainingSettings, learning_rate: float, pairs: int, folder: str
) -> dict[str, Any]:
    arguments = training_arguments(
        base,
        settings,
        learning_rate=learning_rate,
        pairs=pairs,
        whole_groups=False,
        seed=0,
        output_dir=str(Path(folder)),
    )
    return {**arguments, "logging_strategy": "steps", "logging_steps": 1}


def _train(trainer: Trainer) -> list[float]:
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
