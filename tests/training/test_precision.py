"""A bfloat16 base: mixed precision in training and reference alike, float32 LoRA weights."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import LORA, make_pairs, with_settings

from fedpref.adapter_state import initial_state, state_digest
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.sft import train_sft


@pytest.mark.contract
def test_a_bfloat16_base_trains_float32_adapters_at_tiny_rates(tiny_folder: Path) -> None:
    base = load_base_model(tiny_folder, device="cpu", dtype="bfloat16")
    assert {p.dtype for p in base.model.parameters()} == {torch.bfloat16}
    spec = make_spec(base, LORA)
    pairs = make_pairs(8)
    # 5e-6 beside a weight of 0.1 is lost in bfloat16 (steps of 4e-4), and kept in float32.
    settings = with_settings(sft_learning_rate=2e-4, dpo_learning_rate=5e-6)
    root = train_sft(base, spec, initial_state(spec, 0), pairs, settings)
    assert root is not None
    reference = sequence_logps(base, spec, root.state, pairs, settings)
    trained = train_dpo(base, spec, root.state, pairs, reference, settings)
    assert trained is not None
    assert trained.first_loss == pytest.approx(math.log(2), abs=1e-4)
    moved = [np.abs(trained.state[k] - root.state[k]).max() for k in spec.keys if "lora_A" in k]
    assert min(moved) > 1e-6
    assert max(moved) < 1e-4
    assert {p.dtype for p in base.model.parameters()} == {torch.bfloat16}


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from tiny_models import LORA, SETTINGS, make_pairs
from fedpref.adapter_state import initial_state, state_digest
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.reference import sequence_logps
from fedpref.training.sft import train_sft

base = load_base_model(sys.argv[2], device="cpu")
spec = make_spec(base, LORA)
pairs = make_pairs(6)
root = train_sft(base, spec, initial_state(spec, 7), pairs, SETTINGS)
reference = sequence_logps(base, spec, root.state, pairs, SETTINGS)
print(state_digest(train_dpo(base, spec, root.state, pairs, reference, SETTINGS).state))
"""


@pytest.mark.long
def test_another_process_gets_the_same_bits(
    tiny_folder: Path, base: Any, spec: Any, state: Any
) -> None:
    digests = set()
    for hash_seed, threads in (("1", "1"), ("2", "2")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tiny_folder)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    pairs = make_pairs(6)
    settings = with_settings()
    root = train_sft(base, spec, state, pairs, settings)
    assert root is not None
    reference = sequence_logps(base, spec, root.state, pairs, settings)
    here = train_dpo(base, spec, root.state, pairs, reference, settings)
    assert here is not None
    assert digests == {state_digest(here.state)}
