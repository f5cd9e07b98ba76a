"""What is installed, and what travels in Flower's bundle."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_a_wheel_holds_the_library_and_the_app() -> None:
    # Every site installs the wheel; `make` installs the checkout, where nothing is missing.
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["fedpref", "fedpref_app"]}
    components = PROJECT["tool"]["flwr"]["app"]["components"]
    for component in components.values():
        module, _, name = component.partition(":")
        assert module.split(".")[0] in wheel["packages"]
        assert name == "app"


def test_the_bundle_holds_the_app_alone() -> None:
    assert PROJECT["tool"]["flwr"]["app"]["fab-include"] == ["fedpref_app/**/*.py"]
