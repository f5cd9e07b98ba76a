"""The run configuration: defaults, profiles, and every kind of mistake, all at once."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedpref.config import RunConfig, load_config
from fedpref.errors import ConfigError, FedPrefError, FedPrefErrors

ROOT = Path(__file__).resolve().parent.parent


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def test_pyproject_lists_every_key_with_its_default() -> None:
    # Flower refuses a key that pyproject does not list, and takes its value where none is given.
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = flatten(pyproject["tool"]["flwr"]["app"]["config"])
    assert listed == RunConfig().to_flat()
    assert {k: type(v) for k, v in listed.items()} == {
        k: type(v) for k, v in RunConfig().to_flat().items()
    }


def test_every_profile_loads() -> None:
    profiles = sorted((ROOT / "profiles").glob("*.toml"))
    assert [p.name for p in profiles] == ["openi-tiny.toml", "paper.toml"]
    for profile in profiles:
        load_config(flatten(tomllib.loads(profile.read_text(encoding="utf-8"))))


def test_the_paper_profile_holds_the_figures_of_the_paper() -> None:
    text = (ROOT / "profiles" / "paper.toml").read_text(encoding="utf-8")
    config = load_config(flatten(tomllib.loads(text)))
    assert config.model.path == "Qwen/Qwen3-8B"
    assert config.model.dtype == "bfloat16"
    assert config.prompt.style == "full"
    assert (config.lora.rank, config.lora.alpha, len(config.lora.targets)) == (16, 32.0, 7)
    training = config.training
    assert (training.sft_learning_rate, training.dpo_learning_rate) == (2e-4, 5e-6)
    assert (training.beta, training.accumulation, training.max_length) == (0.1, 4, 2048)
    assert training.gradient_checkpointing
    assert config.rounds == 3


def test_a_flat_config_comes_back() -> None:
    config = load_config({"lora.targets": "q_proj, k_proj", "lora.alpha": 8, "rounds": 1})
    assert config.lora.targets == ("q_proj", "k_proj")
    assert config.lora.alpha == 8.0
    assert load_config(config.to_flat()) == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora.rnak": 3}, "key lora.rnak: unknown key. did you mean 'lora.rank'?"),
        ({"learning-rate": 3}, "key learning-rate: unknown key"),
        ({"sft-learning-rate": 1.0}, "did you mean 'training.sft-learning-rate'?"),
        ({"training.max_length": 9}, "did you mean 'training.max-length'?"),
        ({"xyzzy": 1}, "key xyzzy: unknown key. remove it"),
        ({"seed": "7"}, "key seed: '7' was given. use a whole number"),
        ({"seed": True}, "key seed: True was given. use a whole number"),
        ({"seed": 1.5}, "key seed: 1.5 was given. use a whole number"),
        ({"seed": -1}, "key seed: -1 was given. use a value ≥ 0"),
        ({"rounds": -1}, "key rounds: -1 was given. use a value ≥ 0"),
        ({"training.beta": 0.0}, "key training.beta: 0.0 was given. use a value > 0"),
        ({"training.beta": float("nan")}, "key training.beta: nan was given"),
        ({"training.dpo-learning-rate": "5e-6"}, "use a number"),
        ({"training.gradient-checkpointing": "yes"}, "use true or false"),
        ({"training.on-too-long": "cut"}, "use one of 'error' or 'drop'"),
        ({"model.dtype": "fp16"}, "use one of 'auto', 'float32' or 'bfloat16'"),
        ({"model.device": "gpu"}, "key model.device: 'gpu' was given"),
        ({"prompt.style": "short"}, "use one of 'full' or 'compact'"),
        ({"strategy": "a b"}, "key strategy: 'a b' was given"),
        ({"strategy": ""}, "key strategy: '' was given"),
        ({"strategy-options": "eta = "}, "key strategy-options: the options cannot be read"),
        ({"strategy-options": "eta = inf"}, "the option 'eta' has the value inf"),
        ({"lora.targets": " , "}, "name at least one, separated by commas"),
        ({"lora.targets": "q_proj,q_proj"}, "q_proj named more than once"),
        ({"federation": "../x"}, "key federation: '../x' was given"),
        ({"run-id": "a/b"}, "key run-id: 'a/b' was given"),
        ({"quorum": 3, "min-sites": 2}, "quorum = 3 is larger than min-sites = 2"),
        (
            {"round-deadline": 100.0, "message-ttl": 50.0},
            "round-deadline = 100 s is longer than message-ttl = 50 s",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_to_do(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(given)
    assert message in str(caught.value)
    assert str(caught.value).startswith("[FP100] key ")


def test_all_mistakes_are_reported_at_once() -> None:
    given = {
        "lora.rnak": 3,
        "seed": "x",
        "training.beta": -1.0,
        "quorum": 3,
        "min-sites": 2,
    }
    with pytest.raises(FedPrefErrors) as caught:
        load_config(given)
    keys = [error.key for error in caught.value.errors]
    assert keys == ["lora.rnak", "seed", "training.beta", "quorum"]
    assert isinstance(caught.value, FedPrefError)


def test_the_digest_follows_what_can_change_a_number() -> None:
    base = load_config({}).digest
    for key, value in {
        "seed": 1,
        "training.beta": 0.2,
        "prompt.style": "full",
        "rounds": 2,
        "strategy": "uniform",
        "strategy-options": "eta = 2.0",
    }.items():
        assert load_config({key: value}).digest != base, key
    for key, value in {
        "runs-dir": "x", "run-id": "x", "resume": "x", "sites": "x", "model.path": "x",
        "round-deadline": 9.0, "join-deadline": 9.0, "quorum": 1, "federation": "x",
    }.items():  # fmt: skip
        assert load_config({key: value}).digest == base, key


def test_the_configuration_is_frozen_and_its_tree_names_every_key() -> None:
    config = load_config({})
    with pytest.raises(ValidationError):
        config.seed = 3  # type: ignore[misc]
    for key, value in config.to_flat().items():
        assert f"{key.rpartition('.')[2]} = {value!r}" in config.tree()
