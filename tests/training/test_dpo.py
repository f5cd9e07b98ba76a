"""The fixed reference, what is counted, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tiny_models import SETTINGS, make_pairs, with_settings
from trl import DPOConfig, DPOTrainer

from fedpref.adapter_state import initial_state, state_digest
from fedpref.config import TrainingSettings
from fedpref.errors import AdapterError, TrainingError
from fedpref.training import dpo, sft, trainer
from fedpref.training.dpo import FixedReferenceTrainer, PreferenceTreeTrainer, train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.sft import train_sft


@pytest.fixture
def seen(monkeypatch: Any) -> list[Any]:
    """The trainers that ran, with the rewards of each micro-batch."""
    trainers: list[Any] = []
    original = trainer._train

    def spy(phase: Any, *args: Any) -> Any:
        metrics: dict[str, list[float]] = {}
        log = phase.log

        def keep(*values: Any) -> None:
            metrics.update({key: list(value) for key, value in phase._metrics["train"].items()})
            log(*values)

        phase.log = keep
        result = original(phase, *args)
        trainers.append(
            {
                "adapters": list(phase.model.peft_config),
                "rewards": metrics["rewards/chosen"],
                "margins": metrics["rewards/margins"],
                "reference": phase.ref_model,
                "dtypes": {p.dtype for n, p in phase.model.named_parameters() if "lora" in n},
                "optimizer": phase.args.optim,
                "reentrant": phase.args.gradient_checkpointing_kwargs["use_reentrant"],
            }
        )
        return result

    monkeypatch.setattr(trainer, "_train", spy)
    return trainers


@pytest.fixture(params=["tree", "trl"])
def settings(request: Any) -> TrainingSettings:
    return with_settings(engine=request.param)


def test_first_step_after_the_root_is_ln_2_with_zero_rewards(
    base: Any, spec: Any, root: Any, seen: list[Any], settings: TrainingSettings
) -> None:
    pairs = make_pairs(8)
    reference = sequence_logps(base, spec, root, pairs, settings)
    trained = train_dpo(base, spec, root, pairs, reference, settings)
    assert trained is not None
    assert trained.first_loss == pytest.approx(math.log(2), abs=1e-4)
    batches = len(seen[0]["rewards"]) // 2  # that one of two steps makes
    assert seen[0]["rewards"][:batches] == pytest.approx([0.0] * batches, abs=1e-4)
    assert seen[0]["margins"][:batches] == pytest.approx([0.0] * batches, abs=1e-4)
    assert abs(seen[0]["margins"][-1]) > 1e-3  # and they move from the second step on


def test_the_first_tree_step_is_ln_2_to_the_bit(base: Any, spec: Any, root: Any) -> None:
    # The reference comes from the same trees, so that nothing but the logarithm is rounded.
    pairs = make_pairs(3)
    reference = sequence_logps(base, spec, root, pairs, SETTINGS)
    trained = train_dpo(base, spec, root, pairs, reference, SETTINGS)
    assert trained is not None
    assert trained.first_loss == pytest.approx(math.log(2), rel=2**-23)


def test_later_rounds_are_measured_against_the_root(
    base: Any, spec: Any, root: Any, settings: TrainingSettings
) -> None:
    pairs = make_pairs(8)
    reference = sequence_logps(base, spec, root, pairs, settings)
    first = train_dpo(base, spec, root, pairs, reference, settings)
    assert first is not None
    second = train_dpo(base, spec, first.state, pairs, reference, settings)
    assert second is not None
    now = sequence_logps(base, spec, first.state, pairs[:4], settings)

    def loss(pair_id: str) -> float:
        chosen, rejected = (n - r for n, r in zip(now[pair_id], reference[pair_id], strict=True))
        return math.log1p(math.exp(-SETTINGS.beta * (chosen - rejected)))

    expected = sum(loss(pair.pair_id) for pair in pairs[:4]) / 4
    assert abs(expected - math.log(2)) > 0.01
    assert second.first_loss == pytest.approx(expected, abs=1e-5)


def test_no_ref_adapter_no_reference_forward_float32_fused(
    base: Any, spec: Any, root: Any, seen: list[Any], monkeypatch: Any, settings: TrainingSettings
) -> None:
    monkeypatch.setattr(DPOTrainer, "compute_ref_log_probs", None)
    monkeypatch.setattr(DPOTrainer, "_precompute_ref_logps", None)
    pairs = make_pairs(3)
    reference = {pair.pair_id: (-1.0, -2.0) for pair in pairs}
    train_dpo(base, spec, root, pairs, reference, settings)
    train_dpo(base, spec, root, pairs, reference, settings)  # "ref already exists" of old
    assert [item["adapters"] for item in seen] == [["default"], ["default"]]
    assert seen[0]["reference"] is None
    assert {str(dtype) for dtype in seen[0]["dtypes"]} == {"torch.float32"}
    assert seen[0]["optimizer"] == "adamw_torch_fused"
    assert seen[0]["reentrant"] is False


def test_a_reference_forward_is_refused() -> None:
    with pytest.raises(TrainingError, match="reference forward"):
        FixedReferenceTrainer.compute_ref_log_probs(None, None, None)  # type: ignore[arg-type]


def test_reference_values_enter_the_loss(
    base: Any, spec: Any, root: Any, settings: TrainingSettings
) -> None:
    pairs = make_pairs(1)
    (chosen, rejected), *_ = sequence_logps(base, spec, root, pairs, settings).values()
    trained = train_dpo(base, spec, root, pairs, {"pair-0": (chosen - 10, rejected)}, settings)
    assert trained is not None
    # beta 0.1 times a log-ratio of 10: -log sigmoid(1) = 0.3133
    assert trained.first_loss == pytest.approx(0.3133, abs=1e-4)


def test_the_log_is_trl_s_whatever_trees_a_group_is_divided_into(
    base: Any, spec: Any, root: Any, monkeypatch: Any
) -> None:
    """Two groups of four pairs in trees of unequal size; a line of the log for each group."""
    logs: dict[str, list[dict[str, float]]] = {}
    runs: list[int] = []
    arguments, train, parts = dpo.training_arguments, trainer._train, dpo._parts

    def every_step(*args: Any, **kwargs: Any) -> dict[str, Any]:
        logging = {"logging_strategy": "steps", "logging_steps": 1}
        return arguments(*args, **kwargs) | logging

    def spy(phase: Any, *args: Any) -> Any:
        result = train(phase, *args)
        logs["tree" if isinstance(phase, PreferenceTreeTrainer) else "trl"] = [
            line for line in phase.state.log_history if "loss" in line
        ]
        return result

    def parts_of(*args: Any) -> Any:
        found = parts(*args)
        runs.extend(len(part.tree.responses) // 2 for part in found)
        return found

    monkeypatch.setattr(dpo, "training_arguments", every_step)
    monkeypatch.setattr(trainer, "_train", spy)
    monkeypatch.setattr(dpo, "_parts", parts_of)
    pairs = make_pairs(8)
    # So unequal that a mean of means would be another one.
    reference = {pair.pair_id: (-5.0 * i, 0.0) for i, pair in enumerate(pairs)}
    for engine in ("trl", "tree"):
        settings = with_settings(engine=engine, max_tree_tokens=100, dpo_learning_rate=1e-3)
        train_dpo(base, spec, root, pairs, reference, settings)
    assert runs == [1, 1, 2, 2, 2]
    shown = {"loss", "grad_norm", "learning_rate"} | {
        *("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"),
        *("logps/chosen", "logps/rejected"),
    }
    assert len(logs["trl"]) == len(logs["tree"]) == 2
    for line, expected in zip(logs["tree"], logs["trl"], strict=True):
        for name in shown:
            assert line[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def test_a_missing_reference_is_refused(
    base: Any, spec: Any, root: Any, settings: TrainingSettings
) -> None:
    with pytest.raises(TrainingError, match="a pair has no reference"):
        train_dpo(base, spec, root, make_pairs(2), {"pair-0": (0.0, 0.0)}, settings)


def test_zero_pairs_train_nothing(base: Any, spec: Any, state: Any) -> None:
    assert train_sft(base, spec, state, [], SETTINGS) is None
    assert train_dpo(base, spec, state, [], {}, SETTINGS) is None


def test_nan_is_an_error_not_a_model(
    base: Any, spec: Any, root: Any, settings: TrainingSettings
) -> None:
    pairs = make_pairs(2)
    with pytest.raises(TrainingError, match="the loss became nan in optimiser step 1"):
        train_dpo(base, spec, root, pairs, {p.pair_id: (math.nan, 0.0) for p in pairs}, settings)
    bad = {key: np.full_like(array, np.nan) for key, array in root.items()}
    with pytest.raises(AdapterError, match="NaN"):
        train_sft(base, spec, bad, pairs, settings)


def test_training_that_moves_nothing_is_refused(
    base: Any, spec: Any, state: Any, settings: TrainingSettings
) -> None:
    # A rate so small that B stays 0 in float32 is as good as no training.
    with pytest.raises((TrainingError, AdapterError), match="lora_B is zero"):
        train_sft(
            base,
            spec,
            state,
            make_pairs(2),
            settings.model_copy(update={"sft_learning_rate": 1e-46}),
        )


def test_a_second_gpu_in_sight_changes_no_group(
    base: Any, spec: Any, root: Any, settings: TrainingSettings, monkeypatch: Any
) -> None:
    # transformers would give each GPU a batch: eight pairs an optimiser step instead of four.
    def on_two(**arguments: Any) -> DPOConfig:
        config = DPOConfig(**arguments)
        assert config.device.type == "cpu"
        config._n_gpu = 2
        return config

    monkeypatch.setattr(dpo, "DPOConfig", on_two)
    pairs = make_pairs(8)
    reference = {pair.pair_id: (0.0, 0.0) for pair in pairs}
    trained = train_dpo(base, spec, root, pairs, reference, settings)
    assert trained is not None
    assert trained.steps == 2


def test_trl_s_engine_asks_for_no_trees(
    base: Any, spec: Any, state: Any, root: Any, monkeypatch: Any
) -> None:
    # Of what does not take them, not even the sizes can be asked: some name them otherwise.
    monkeypatch.setattr(dpo, "tree_limits", None)
    monkeypatch.setattr(sft, "tree_limits", None)
    settings, pairs = with_settings(engine="trl"), make_pairs(1)
    assert train_sft(base, spec, state, pairs, settings) is not None
    assert train_dpo(base, spec, root, pairs, {"pair-0": (0.0, 0.0)}, settings) is not None


@pytest.mark.contract
@pytest.mark.parametrize("phase", ["sft", "dpo"])
def test_gradient_checkpointing_trains_every_lora_b_alike(
    base: Any, spec: Any, phase: str, settings: TrainingSettings
) -> None:
    start = initial_state(spec, 0)
    pairs = make_pairs(4)

    def train(checkpointing: bool) -> Any:
        changed = settings.model_copy(update={"gradient_checkpointing": checkpointing})
        if phase == "sft":
            return train_sft(base, spec, start, pairs, changed)
        reference = {pair.pair_id: (0.0, 0.0) for pair in pairs}
        return train_dpo(base, spec, start, pairs, reference, changed)

    plain, saved = train(False), train(True)
    assert plain.steps == saved.steps == 1
    for key in spec.keys:
        assert np.abs(plain.state[key] - saved.state[key]).max() <= 1e-6
        if ".lora_B." in key:
            assert saved.state[key].any()
    assert state_digest(saved.state) != state_digest(start)
