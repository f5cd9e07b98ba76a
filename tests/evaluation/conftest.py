"""A tiny random model whose context holds the compact prompt in bytes, and a random adapter."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Test folders are no packages; the builders of the training tests are shared by path.
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_models import LORA, save_tiny

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    folder = save_tiny(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    return load_base_model(folder, device="cpu")


@pytest.fixture(scope="session")
def spec(base: BaseModel) -> AdapterSpec:
    return make_spec(base, LORA)


@pytest.fixture(scope="session")
def initial(spec: AdapterSpec) -> AdapterState:
    return initial_state(spec, 7)


@pytest.fixture(scope="session")
def adapter(spec: AdapterSpec) -> Any:
    """An adapter that changes answers, as one does after training."""
    rng = np.random.default_rng(3)
    return {
        key: rng.normal(0, 0.2, size=shape).astype(np.float32)
        for key, shape in zip(spec.keys, spec.shapes, strict=True)
    }
