"""Fixtures over the tiny models of tiny_models.py."""

import sys
from pathlib import Path
from typing import Any

import pytest

# Test folders are no packages; the builders are shared by path.
sys.path.insert(0, str(Path(__file__).parent))

from tiny_models import LORA, make_pairs, save_tiny

from fedpref.adapter_state import initial_state
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model
from fedpref.training.encoding import EncodedPair


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
