"""Who may import whom. Wrong numbers are born in pure modules; they stay fast to test.

The rules are read from the source (module level and inside functions), and checked once more by
importing the server side in a fresh interpreter.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes"}

PURE = [
    "fedpref/errors.py",
    "fedpref/files.py",
    "fedpref/hashing.py",
    "fedpref/inline_options.py",
    "fedpref/training/adjustment.py",
    "fedpref/adapter_state.py",
    "fedpref/residual.py",
    *(f"fedpref/task/{name}.py" for name in ("ontology", "projection", "prompt", "scoring")),
    "fedpref/task/structure.py",
    "fedpref/data/partition.py",
    "fedpref/data/divergence.py",
    "fedpref/data/quantity.py",
    "fedpref/preference/pairs.py",
    *(
        f"fedpref/federation/aggregation/{name}.py"
        for name in ("__init__", "feddraw", "fedex", "inputs", "layers", "low_rank", "mean", "svd")
    ),
    "fedpref/federation/quantise.py",
    "fedpref/federation/participation.py",
    "fedpref/evaluation/metrics.py",
    "fedpref/evaluation/bootstrap.py",
    "fedpref/evaluation/selection.py",
    "fedpref/evaluation/ranks.py",
    "fedpref/evaluation/federated_bootstrap.py",
    "fedpref/evaluation/locked_test.py",
    "fedpref/evaluation/noniid.py",
    "fedpref/evaluation/headroom.py",
    "fedpref/preference/contrast.py",
    "fedpref/experiment/results.py",
]  # fmt: skip

# A package may import from itself and from those before it.
ORDER = ["task", "data", "preference", "demo", "training", "evaluation", "federation"]
ORDER += ["experiment", "report", "cli"]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", PURE)
def test_pure_modules_import_no_framework(path: str) -> None:
    tops = {name.split(".")[0] for name in imported(ROOT / path)}
    assert not tops & (HEAVY | {"flwr"})


def test_packages_import_in_one_direction() -> None:
    seen = 0
    for package in ORDER:
        later = ORDER[ORDER.index(package) + 1 :]
        for path in (ROOT / "fedpref" / package).rglob("*.py"):
            seen += 1
            wrong = {
                name
                for name in imported(path)
                for other in later
                if name == f"fedpref.{other}" or name.startswith(f"fedpref.{other}.")
            }
            # A site's demo folder is made on demand, and pairs can be checked against a tokenizer:
            # both are imported inside the one function that needs them.
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"
    assert seen > 30


@pytest.mark.parametrize("module", ["fedpref_app.server_app", "fedpref.cli", "fedpref.config"])
def test_the_server_side_needs_no_torch(module: str) -> None:
    slow = {"scipy.stats", "matplotlib"}  # a second each, which every command would take longer
    code = f"import sys, {module}; print(sorted({HEAVY | slow!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
