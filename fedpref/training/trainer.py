"""What the SFT and the DPO trainer share: arguments, bookkeeping, and how a phase is run.

TRL's trainers are used as they are, with a narrow mix-in: the data are token ids already, so that
TRL neither tokenizes nor prints text; nothing is downloaded, reported or left on disk.
"""

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import nn
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from fedpref.adapter_state import AdapterSpec, AdapterState, check_state, state_digest
from fedpref.errors import AdapterError, TrainingError
from fedpref.residual import split
from fedpref.training.adapter import check_trained, freeze_a, load_state, read_state
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.base_model import BaseModel
from fedpref.training.session import model_session
from fedpref.training.trained import Trained

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings

ROW = "row"  # the column that names a pair's place in the data
_WARMUP_FROM_STEPS = 10


def step_count(pairs: int, accumulation: int) -> int:
    """Return the optimiser steps of one epoch; the last group may be smaller."""
    return math.ceil(pairs / accumulation)


def warmup_steps(steps: int, ratio: float) -> int:
    """Return ceil(ratio·steps), or 0 below ten steps: there warm-up would train nothing."""
    return math.ceil(ratio * steps) if steps >= _WARMUP_FROM_STEPS else 0


def training_arguments(
    base: BaseModel,
    settings: "TrainingSettings",
    *,
    learning_rate: float,
    pairs: int,
    whole_groups: bool,
    seed: int,
    output_dir: str,
) -> dict[str, Any]:
    """Return the arguments of one epoch that the SFT and the DPO trainer have in common.

    AdamW (fused) with weight decay 0, cosine decay, gradient norm clipped at 1.0 (the default of
    transformers), in order, nothing cut, saved or reported. A batch is an accumulation group, or
    one pair of it.
    """
    on_cpu = base.device == "cpu"
    return {
        "output_dir": output_dir,
        "num_train_epochs": 1,
        "per_device_train_batch_size": settings.accumulation if whole_groups else 1,
        "gradient_accumulation_steps": 1 if whole_groups else settings.accumulation,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": warmup_steps(
            step_count(pairs, settings.accumulation), settings.warmup_ratio
        ),
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        # Mixed precision only where the base is held in bfloat16; LoRA parameters stay float32.
        "bf16": base.dtype == "bfloat16",
        "fp16": False,
        "use_cpu": on_cpu,
        "max_length": None,
        "train_sampling_strategy": "sequential",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": not on_cpu,
        "seed": seed,
        "data_seed": seed,
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "include_num_input_tokens_seen": "no",
    }


class _StepCallback(TrainerCallback):  # type: ignore[misc]
    """Closes an accumulation group when the optimiser has stepped."""

    def __init__(self, close_group: Callable[[], None]) -> None:
        self._close_group = close_group

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer after each optimiser step."""
        self._close_group()


class PhaseMixin(Trainer):  # type: ignore[misc]
    """Mixed into a TRL trainer: counts what was trained, keeps exact losses, stays silent.

    The rows come with the column `row` (place in the data); it never reaches the model.
    `hold` adds a proximal term; the recorded losses are those without it.
    """

    def __init__(self, *, args: TrainingArguments, **kwargs: Any) -> None:
        assert args.device  # which sets the next: all GPUs in sight, each with a batch of its own
        args._n_gpu = 1
        super().__init__(args=args, **kwargs)
        self.remove_callback(PrinterCallback)
        self.add_callback(_StepCallback(self._close_group))
        self.step_losses: list[float] = []
        self.trained_rows: set[int] = set()
        self._group_loss = 0.0
        self._group_rows: set[int] = set()
        self._proximal_mu = 0.0
        self._start: list[tuple[nn.Parameter, torch.Tensor]] = []

    def hold(self, mu: float) -> None:
        """Add mu/2·‖w − w_now‖² over the trainable parameters to the loss of each step."""
        self._proximal_mu = mu
        trainable = (p for p in self.model.parameters() if p.requires_grad)
        self._start = [(p, p.detach().clone()) for p in trainable]

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Forward and backward of a batch; raises TrainingError if the loss is no number."""
        first = not self._group_rows
        self._group_rows.update(inputs.pop(ROW).tolist())
        loss = self.group_gradient(model, inputs, num_items_in_batch)
        if first and self._proximal_mu:
            self._add_proximal_gradient()
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss became {value} in optimiser step {self.state.global_step + 1}",
                why="the learning rate is too high for this model, or its weights are damaged",
                fix="lower the learning rate, or check the base model",
            )
        self._group_loss += value
        return loss

    def group_gradient(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any
    ) -> torch.Tensor:
        """Add the gradient of a batch to the parameters and return its part of the loss."""
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

    def _add_proximal_gradient(self) -> None:
        """Add mu·(w − w_start), once a step: the parameters do not move within a group."""
        for parameter, start in self._start:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - start, alpha=self._proximal_mu)

    def _close_group(self) -> None:
        self.step_losses.append(self._group_loss)
        self.trained_rows |= self._group_rows
        self._group_loss, self._group_rows = 0.0, set()

    def _send_telemetry(self) -> None:
        """Send nothing: a hospital's training is nobody's statistics."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the count is not used and costs a walk over the model at each step."""
        return 0

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: list[str] = list(self._signature_columns)  # type: ignore[has-type]
        if ROW not in columns:
            self._signature_columns = [*columns, ROW]


class RowCollator:
    """A collator that adds each example's place in the data to what `collate` returns."""

    def __init__(self, collate: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self.collate = collate

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch of `examples` as tensors."""
        rows = torch.tensor([example[ROW] for example in examples])
        return {**self.collate(examples), ROW: rows}


def run_phase(
    base: BaseModel,
    spec: AdapterSpec,
    state: AdapterState,
    make_trainer: Callable[[PreTrainedModel, str], PhaseMixin],
    adjustment: Adjustment = AS_USUAL,
) -> Trained:
    """Train from `state` and return the result; raises TrainingError or AdapterError on a bad one.

    `make_trainer(bare model, temporary folder)` returns a trainer that has attached an adapter of
    its own making, whose weights are replaced by `state`; a residual in it stays as it is and is no
    part of the result. Base and process are as before after it.
    `adjustment` is what the run's strategy changes in the training.
    """
    started = time.monotonic()
    with (
        _collected(),
        model_session(base) as model,
        tempfile.TemporaryDirectory(prefix="fedpref-") as folder,
    ):
        trained, losses, pair_count = _train(make_trainer(model, folder), spec, state, adjustment)
    if base.device != "cpu":
        torch.cuda.empty_cache()
    return Trained(
        state=trained,
        trained_pair_count=pair_count,
        steps=len(losses),
        first_loss=losses[0],
        last_loss=losses[-1],
        mean_loss=math.fsum(losses) / len(losses),
        seconds=time.monotonic() - started,
    )


def _train(
    trainer: PhaseMixin, spec: AdapterSpec, state: AdapterState, adjustment: Adjustment
) -> tuple[AdapterState, list[float], int]:
    """Return the trained state, the loss of each step and the number of pairs trained."""
    model = trainer.model
    assert isinstance(model, PeftModel)  # both TRL trainers wrap the bare model themselves
    load_state(model, spec, state)
    if adjustment.freeze_a:
        freeze_a(model)
    if adjustment.proximal_mu:
        trainer.hold(adjustment.proximal_mu)
    trainer.train()
    trained = read_state(model)
    try:
        check_state(trained, spec)
    except AdapterError as error:
        raise TrainingError("the trained adapter is not usable", why=str(error)) from None
    check_trained(trained)
    start, _ = split(state, spec.rank)
    if state_digest(trained) == state_digest(start):
        raise TrainingError("training changed nothing", fix="raise the learning rate")
    return trained, trainer.step_losses, len(trainer.trained_rows)


@contextmanager
def _collected() -> Iterator[None]:
    """Free the cycles in which a trainer holds its model, and only look at what is new.

    Trainers collect garbage as well; each full collection of a process that has loaded these
    libraries takes a quarter of a second, as long as a dozen small training steps.
    """
    freeze = gc.get_freeze_count() == 0
    if freeze:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if freeze:
            gc.unfreeze()


def rows_of(columns: Sequence[Mapping[str, Any]]) -> Dataset:
    """Return the columns of each pair with its place in the data added."""
    return Dataset.from_list([{**column, ROW: index} for index, column in enumerate(columns)])
