"""Strategies as they are named on a command line."""

import pytest

from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError
from fedpref.experiment.arms import Arm, leaves_training, matched_arms, strategy_arms
from fedpref.federation.strategies import NAMED, SiteStrategy, make_strategy
from fedpref.inline_options import read_options

CONFIG = RunConfig()


def named(text: str) -> list[tuple[str, str, str]]:
    return [(arm.name, arm.strategy, arm.options) for arm in strategy_arms(text, CONFIG)]


def test_names_options_and_bare_words() -> None:
    assert named("pair-fedavg, feddraw( eta = 2.5 ,similarity=factors),uniform") == [
        ("pair-fedavg", "pair-fedavg", ""),
        ("feddraw(eta=2.5,similarity=factors)", "feddraw", 'eta = 2.5, similarity = "factors"'),
        ("uniform", "uniform", ""),
    ]


@pytest.mark.parametrize(
    ("inside", "options"),
    [
        ("whole-model=true", {"whole_model": True}),
        ("similarity='factors'", {"similarity": "factors"}),
        ('ablation="inner",kappa=1', {"ablation": "inner", "kappa": 1}),
    ],
)
def test_values_are_tomls(inside: str, options: dict[str, object]) -> None:
    arm = strategy_arms(f"uniform,feddraw({inside})", CONFIG)[1]
    assert read_options(arm.options, key="k") == options


def test_folders_differ_where_names_do() -> None:
    arms = [
        *strategy_arms("feddraw(eta=2),feddraw(eta=2.5),uniform,feddraw", CONFIG),
        Arm("feddraw-eta-2", "feddraw"),
    ]
    assert len({arm.folder for arm in arms}) == len(arms)
    assert arms[2].folder == "uniform"
    for arm in arms:
        assert RunConfig(run_id=arm.folder).run_id == arm.folder


def test_every_wrong_entry_is_named_at_once() -> None:
    with pytest.raises(FedPrefError) as caught:
        strategy_arms("fedraw,feddraw(etta=1,similarity=nothing),uniform(x=1),QFedAvgg", CONFIG)
    said = str(caught.value)
    for part in (
        "fedraw: there is no strategy 'fedraw'. did you mean 'feddraw'?",
        "feddraw has no option 'etta'",
        "the option similarity is 'nothing'",
        "uniform has no option 'x'",
        "QFedAvgg: there is no strategy",
    ):
        assert part in said
    assert all(isinstance(error, ConfigError) for error in caught.value.errors)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["svd(,uniform", "uniform,svd)", "uniform,svd()x", "a b,uniform"])
def test_an_entry_that_cannot_be_read(text: str) -> None:
    with pytest.raises(FedPrefError, match="the entry cannot be read"):
        strategy_arms(text, CONFIG)


@pytest.mark.parametrize(
    "text", ["feddraw,feddraw(eta=1)", "uniform,uniform", "feddraw(eta=2),feddraw(eta=2.0)"]
)
def test_one_strategy_in_two_spellings(text: str) -> None:
    with pytest.raises(ConfigError, match="are one and the same strategy"):
        strategy_arms(text, CONFIG)


def test_local_and_pair_fedavg_are_two() -> None:
    assert len(strategy_arms("local,pair-fedavg", CONFIG)) == 2


@pytest.mark.parametrize("text", ["", "uniform", ","])
def test_one_strategy_is_no_comparison(text: str) -> None:
    with pytest.raises(ConfigError, match=r"strategies were named.*two or more"):
        strategy_arms(text, CONFIG)


def test_the_papers_arms() -> None:
    config = RunConfig(strategy="feddraw", strategy_options="eta = 2")
    assert [(arm.name, arm.strategy, arm.options, arm.pooled) for arm in matched_arms(config)] == [
        ("fedpref", "feddraw", "eta = 2", False),
        ("local", "local", "", False),
        ("central", "pair-fedavg", "", True),
    ]


@pytest.mark.parametrize("name", NAMED)
def test_who_is_said_to_change_the_training_does(name: str) -> None:
    made = make_strategy(RunConfig(strategy=name))
    settings = made.train_settings() if isinstance(made, SiteStrategy) else {}
    changes = bool(settings) or getattr(made, "proximal_mu", 0) > 0
    assert leaves_training(Arm(name, name)) is not changes


def test_a_strangers_strategy_may_do_anything() -> None:
    assert leaves_training(Arm("x:Y", "x:Y")) is None
