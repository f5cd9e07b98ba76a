"""The benchmarks are scripts: they are opened by path, and find each other in their folder."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmark_module() -> Callable[[str], Any]:
    """Return a function that opens a benchmark by its name."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))

    def open_(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return open_
