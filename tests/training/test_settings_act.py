"""That each setting does what it is for, in every phase: its loss would change no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import make_pairs, with_settings
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from fedpref.config import TrainingSettings
from fedpref.training import reference, tree_trainer
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.sft import train_sft

PAIRS = make_pairs(10)
LAYERS = 2
Run = Callable[[TrainingSettings], Any]


@pytest.fixture(params=["sft", "dpo", "reference"])
def run(request: Any, base: Any, spec: Any, root: Any) -> Run:
    """One phase over ten pairs, in groups of four."""
    zeros = {pair.pair_id: (0.0, 0.0) for pair in PAIRS}
    runs: dict[str, Run] = {
        "sft": lambda settings: train_sft(base, spec, root, PAIRS, settings),
        "dpo": lambda settings: train_dpo(base, spec, root, PAIRS, zeros, settings),
        "reference": lambda settings: sequence_logps(base, spec, root, PAIRS, settings),
    }
    return runs[request.param]


@pytest.fixture
def trees(monkeypatch: Any) -> list[int]:
    """The number of sequences of each tree that is computed."""
    seen: list[int] = []
    original = tree_trainer.response_logps

    def spy(model: Any, tree: Any) -> torch.Tensor:
        seen.append(len(tree.responses))
        return original(model, tree)

    monkeypatch.setattr(tree_trainer, "response_logps", spy)
    monkeypatch.setattr(reference, "response_logps", spy)
    return seen


def test_a_group_is_divided_by_max_tree_tokens(run: Run, trees: list[int]) -> None:
    def pairs_each(limit: int) -> list[int]:
        trees.clear()
        run(with_settings(max_tree_tokens=limit))
        return [10 * count // sum(trees) for count in trees]

    assert pairs_each(1) == [1] * 10
    whole = pairs_each(10_000)
    assert sum(whole) == 10
    assert max(whole) > 1


@pytest.mark.parametrize("engine", ["tree", "trl"])
@pytest.mark.parametrize("phase", ["sft", "dpo"])
def test_checkpointing_computes_each_layer_again(
    base: Any, spec: Any, root: Any, phase: str, engine: str, monkeypatch: Any
) -> None:
    calls = 0
    original = Qwen3Attention.forward

    def spy(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    # A layer's own forward would do without checkpointing if it were another's.
    monkeypatch.setattr(Qwen3Attention, "forward", spy)
    counts = []
    for checkpointing in (False, True):
        settings = with_settings(
            engine=engine, max_tree_tokens=1, gradient_checkpointing=checkpointing
        )
        calls = 0
        if phase == "sft":
            train_sft(base, spec, root, PAIRS, settings)
        else:
            zeros = {pair.pair_id: (0.0, 0.0) for pair in PAIRS}
            train_dpo(base, spec, root, PAIRS, zeros, settings)
        counts.append(calls)
    assert counts == [LAYERS * 10, 2 * LAYERS * 10]


class Reached(Exception):
    pass


def test_on_a_gpu_every_phase_attends_by_blocks_and_divides_by_the_limit_alone(
    run: Run, base: Any, monkeypatch: Any
) -> None:
    """As far as the first tree: there is no GPU to compute it with."""
    seen: list[tuple[str, int]] = []

    def stop(model: Any, tree: Any) -> torch.Tensor:
        seen.append((model.config._attn_implementation, len(tree.responses)))
        raise Reached

    monkeypatch.setattr(PreTrainedModel, "device", property(lambda _: torch.device("cuda")))
    monkeypatch.setattr(tree_trainer, "response_logps", stop)
    monkeypatch.setattr(reference, "response_logps", stop)
    with pytest.raises(Reached):
        run(with_settings(accumulation=10))
    attention, sequences = seen[0]
    assert attention == "flex_attention"
    assert sequences in {10, 20}  # all in one tree, which the work of attention divides on a CPU
    assert base.model.config._attn_implementation == "sdpa"
