"""Fixtures over the tiny models of tiny_models.py."""

import sys
from pathlib import Path
from typing import Any

import pytest

# Test folders are no packages; the builders are shared by path.
sys.path.insert(0, str(Path(__file__).parent))

from tiny_models import LORA, SETTINGS, make_pairs, save_tiny

from fedpref.adapter_state import initial_state
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model
from fedpref.training.encoding import EncodedPair
from fedpref.training.sft import train_sft


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def base(tiny_folder: Path) -> BaseModel:
    return load_base_model(tiny_folder, device="cpu")


@pytest.fixture(scope="session")
def spec(base: BaseModel) -> Any:
    return make_spec(base, LORA)


@pytest.fixture(scope="session")
def state(spec: Any) -> Any:
    return initial_state(spec, 7)


@pytest.fixture
def pairs() -> list[EncodedPair]:
    return make_pairs(10)


@pytest.fixture(scope="session")
def root(base: BaseModel, spec: Any, state: Any) -> Any:
    """A root as round 0 leaves it."""
    trained = train_sft(base, spec, state, make_pairs(10), SETTINGS)
    assert trained is not None
    return trained.state
