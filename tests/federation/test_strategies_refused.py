"""What a strategy cannot be, and what happens to one that misbehaves."""

import json
import logging
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fake_site import SPEC, make_grid, make_sites, run_server
from flwr.app import ConfigRecord

from fedpref.config import load_config
from fedpref.errors import ConfigError, FedPrefErrors, RoundError
from fedpref.federation.handshake import Agreement
from fedpref.federation.strategies import make_strategy, ready_strategy
from fedpref.federation.strategies.build import sites_needed
from fedpref.federation.strategies.catalogue import NAMED, options_of
from fedpref.federation.strategy_trace import trace_by_site, weights_by_site
from fedpref.federation.strategy_view import SitesOnly
from fedpref.inline_options import read_options


def settings(folder: Path, strategy: str, options: str = "", **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 1, "join-deadline": 2.0}
    base |= {"strategy": strategy, "strategy-options": options}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def made(strategy: str, options: str = "") -> Any:
    return make_strategy(load_config({"strategy": strategy, "strategy-options": options}))


# The text of the options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" ", {}),
        (
            "eta = 2.0, similarity = 'factors', whole-model = true",
            {"eta": 2.0, "similarity": "factors", "whole_model": True},
        ),
        ('keys = ["q", "k"], n = 3', {"keys": ["q", "k"], "n": 3}),
    ],
)
def test_options_are_read(text: str, expected: dict[str, Any]) -> None:
    assert read_options(text, key="k") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eta", "the options cannot be read"),
        ("eta = 1.0 kappa = 2", "the options cannot be read"),
        ("similarity = factors", "the options cannot be read"),
        ("a = 1}\nb = {", "the options cannot be read"),
        ("a = 1, a = 2", "the options cannot be read"),
        ("a-b = 1, a_b = 2", "'a_b' is given twice"),
        ("a = nan", "use true, false, a finite number"),
        ("a = [1, inf]", "use true, false, a finite number"),
        ("a = 1979-05-27", "use true, false, a finite number"),
        ("a = {b = 1}", "use true, false, a finite number"),
        ("a.b = 1", "use true, false, a finite number"),
    ],
)
def test_options_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="key strategy-options") as caught:
        read_options(text, key="strategy-options")
    assert message in str(caught.value)


# Before the first message

BAD = [
    ("pair-fedvag", "", "there is no strategy 'pair-fedvag'. did you mean 'pair-fedavg'?"),
    ("krum", "", "did you mean 'Krum'?"),
    ("fed-median", "", "did you mean 'FedMedian'?"),
    ("xyz", "", "`fedpref strategies` lists them"),
    ("QFedAvg", "q = -0.1", "q is ≥ 0"),
    ("QFedAvg", "train-loss-key = 'x'", "QFedAvg has no option 'train_loss_key'"),
    ("fedx", "", "did you mean 'fedex'?"),
    ("fedex", "rank = 4", "fedex has no option 'rank'. it has none"),
    ("feddraw", "eat = 1.0", "feddraw has no option 'eat'. did you mean 'eta'?"),
    ("feddraw", "beta-mx = 1.0", "did you mean 'beta_max'?"),
    ("feddraw", "eta = 'x'", "the option eta is 'x'. use number"),
    ("feddraw", "eta = -1.0", "eta is -1.0. it must be finite and ≥ 0"),
    ("feddraw", "whole-model = 1", "the option whole_model is 1. use true | false"),
    ("feddraw", "similarity = 'cosine'", "use product | factors | update"),
    ("feddraw", "last-round = 3", "feddraw has no option 'last_round'"),
    ("uniform", "eta = 1.0", "uniform has no option 'eta'. it has none"),
    ("Krum", "num-malicious-nodes = 1.5", "use whole number"),
    ("Krum", "num-malicious-nodes = -1", "num_malicious_nodes is ≥ 0"),
    ("FedTrimmedAvg", "beta = 0.5", "beta lies above 0 and below 0.5"),
    ("FedProx", "proximal-mu = 0.0", "with 0, use pair-fedavg"),
    ("FedAdam", "beta-1 = 1.0", "beta_1 and beta_2 lie in 0…1"),
    ("FedAdam", "eta-l = 0.1", "FedAdam has no option 'eta_l'"),
    ("FedMedian", "fraction-train = 0.5", "'fraction_train' is no option of a strategy here"),
    ("no_such_package_x:Y", "", "the module 'no_such_package_x' cannot be imported"),
    ("no_such_package_x.Y", "", "install its package where the coordinator runs"),
    ("json:Decoder", "", "the module 'json' has no 'Decoder'"),
    ("json:JSONDecoder", "", "'json:JSONDecoder' is no strategy"),
    ("json.dumps", "", "'json.dumps' is no strategy"),
    ("flwr.serverapp.strategy:Strategy", "", "cannot be made of these options. TypeError"),
    ("flwr.serverapp.strategy:QFedAvg", "", "needs the option 'client_learning_rate'"),
    ("flwr.serverapp.strategy:FedAvg", "min-train-nodes = 9", "use fraction, min-sites and quorum"),
    (":X", "", "key strategy: "),
    ("x:", "", "key strategy: "),
]


@pytest.mark.parametrize(("strategy", "options", "message"), BAD)
def test_a_mistake_is_named(strategy: str, options: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(strategy, options)
    assert message in str(caught.value)
    assert caught.value.key in ("strategy", "strategy-options")


@pytest.mark.parametrize(("strategy", "options"), [("krum", ""), ("feddraw", "eat = 1.0")])
def test_nothing_is_asked_or_written_before(tmp_path: Path, strategy: str, options: str) -> None:
    config = settings(tmp_path, strategy, options)
    grid = make_grid(make_sites(tmp_path, [3, 1]), config)
    with pytest.raises(ConfigError):
        run_server(grid, config)
    assert grid.sent == []
    assert not (tmp_path / "runs").exists()


def test_all_mistakes_of_the_options_come_at_once() -> None:
    with pytest.raises(FedPrefErrors) as caught:
        made("feddraw", "eat = 1.0, kappa = 'x', min-train-nodes = 2")
    assert len(caught.value.errors) == 3


def test_a_whole_number_is_a_number() -> None:
    eta = made("feddraw", "eta = 2").options.eta
    assert (eta, type(eta)) == (2.0, float)


def test_every_named_strategy_has_options_of_plain_types() -> None:
    for name, entry in NAMED.items():
        made(name)
        for option in options_of(entry.strategy):
            assert not option.required, (name, option)
            assert json.dumps(option.default)
            assert option.values in ("number", "whole number", "true | false") or (
                str(option.default) in option.values.split(" | ")
            )


# After the handshake, before round 0


@pytest.mark.parametrize(
    ("strategy", "options", "needed"),
    [
        ("pair-fedavg", "", 1),
        ("FedMedian", "", 3),
        ("Krum", "", 3),
        ("Krum", "num-malicious-nodes = 2", 7),
        ("FedTrimmedAvg", "", 5),
        ("FedTrimmedAvg", "beta = 0.49", 3),
        ("FedTrimmedAvg", "beta = 0.1", 10),
    ],
)
def test_how_many_sites_a_strategy_needs(strategy: str, options: str, needed: int) -> None:
    found = made(strategy, options)
    assert sites_needed(found, strategy) == needed
    if strategy == "FedTrimmedAvg":  # what Flower then leaves out at either end
        assert int(found.beta * needed) == 1
        assert int(found.beta * (needed - 1)) == 0


@pytest.mark.parametrize(
    ("strategy", "counts", "values", "key", "sure"),
    [
        ("Krum", [3, 1], {}, "strategy", 2),
        ("FedMedian", [3, 1, 0], {}, "strategy", 2),  # one has nothing to train
        ("FedTrimmedAvg", [3, 1, 4, 1], {}, "strategy", 4),
        ("FedMedian", [3, 1, 4, 1], {"fraction": 0.5}, "quorum", 2),  # two are asked
        ("FedMedian", [3, 1, 4, 1, 0], {"fraction": 0.6}, "quorum", 2),  # the 0 may be one of three
        ("Krum", [3, 1, 4, 0], {"quorum": 3}, "quorum", 2),
    ],
)
def test_too_few_updates_are_refused_before_round_0(
    tmp_path: Path, strategy: str, counts: list[int], values: dict[str, Any], key: str, sure: int
) -> None:
    config = settings(tmp_path, strategy, **values)
    grid = make_grid(make_sites(tmp_path, counts), config)
    with pytest.raises(
        ConfigError, match=f"key {key}: {strategy} needs the updates of . sites in a round, {sure} "
    ) as caught:
        run_server(grid, config)
    assert {message.metadata.message_type for message in grid.sent} == {"query"}
    if key == "quorum":  # what it says helps
        quorum = int(re.findall(r"set quorum to (\d+) or more", caught.value.fix)[0])
        config = settings(tmp_path / "again", strategy, **{**values, "quorum": quorum})
        run_server(make_grid(make_sites(tmp_path / "again", counts), config), config)


@pytest.mark.parametrize("key", ["quorum", "min-sites"])
def test_fewer_sites_than_a_strategy_needs_are_refused_before_any_message(
    tmp_path: Path, key: str
) -> None:
    config = settings(tmp_path, "Krum", **{key.replace("-", "_"): 2})
    grid = make_grid(make_sites(tmp_path, [3, 1, 4]), config)
    with pytest.raises(
        ConfigError, match=rf"key {key}: {key} = 2 is too low for Krum.*3 sites.*to 3 or more"
    ):
        run_server(grid, config)
    assert grid.sent == []
    for quorum in (0, 3):
        assert make_strategy(load_config({"strategy": "Krum", "quorum": quorum}))
    assert make_strategy(load_config({"strategy": "pair-fedavg", "quorum": 1}))


@pytest.mark.parametrize("strategy", ["Krum", "FedMedian"])
def test_a_refused_update_ends_no_run_that_has_the_quorum(tmp_path: Path, strategy: str) -> None:
    config = settings(tmp_path, strategy, quorum=4)
    # The fifth has no pairs and counts for the quorum.
    sites = make_sites(tmp_path, [3, 1, 4, 2, 0])

    def fail(round_: int) -> None:
        raise ValueError("private")

    sites[1].on_train = fail
    run_server(make_grid(sites, config), config)
    lines = (tmp_path / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    assert [list(json.loads(line)["refused"]["training"]) for line in lines] == [["site-b"]] * 2


def test_sites_without_pairs_are_no_fault_of_a_plain_strategy() -> None:
    agreement = Agreement(SPEC, {}, {}, {"a": 0, "b": 0}, synthetic=False)
    assert ready_strategy(load_config({"strategy": "uniform"}), agreement)


# Misbehaving classes


MODULE = '''
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from fedpref.federation.strategies import SiteStrategy


class Fails(SiteStrategy):
    def combine(self, round_, updates):
        raise KeyError("oops")


class Nothing(FedAvg):
    def aggregate_train(self, server_round, replies):
        return None, None


class NoState(SiteStrategy):
    def combine(self, round_, updates):
        return None, {}


class BareState(SiteStrategy):
    def combine(self, round_, updates):
        return dict(updates[0].state)


class Lists(SiteStrategy):
    def combine(self, round_, updates):
        return {key: value.tolist() for key, value in updates[0].state.items()}, {}


class First(SiteStrategy):
    def combine(self, round_, updates):
        return dict(updates[0].state), {}


class NoneWeights(SiteStrategy):
    def combine(self, round_, updates):
        return dict(updates[0].state), {"weights": [None] * len(updates)}


class Words(SiteStrategy):
    def combine(self, round_, updates):
        return dict(updates[0].state), {"note": "text"}


class NoMessages(First):
    def configure_train(self, server_round, arrays, config, grid):
        return [None]


class BadMemory(First):
    def save_state(self):
        return {"x": object()}

    def load_state(self, state):
        pass


class BadPrepare(First):
    def prepare(self, facts):
        raise KeyError("x")


class BadNeed(First):
    sites_needed = "many"


class AsksFewer(First):
    sites_needed = 2

    def configure_train(self, *rest):
        return list(super().configure_train(*rest))[:1]


class Ahead(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        moved = ArrayRecord({key: Array(array.numpy() + 1) for key, array in arrays.items()})
        return super().configure_train(server_round, moved, config, grid)


class Replaces(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        key, array = next(iter(arrays.items()))
        arrays[key] = Array(array.numpy() + 1)
        return super().configure_train(server_round, arrays, config, grid)


class More(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content["variates"] = ArrayRecord({"x": next(iter(arrays.values()))})
            yield message


class Copies(First):
    """Sends the round's adapter, as arrays of its own, and to one site none."""

    def configure_train(self, server_round, arrays, config, grid):
        same = ArrayRecord({key: Array(array.numpy()) for key, array in arrays.items()})
        messages = list(super().configure_train(server_round, same, config, grid))
        del messages[0].content["arrays"]
        return messages


class WithFriend(First):
    def __init__(self, *, friend: First, names: dict[str, First] | None = None):
        self.friend = friend


class FewerKeys(SiteStrategy):
    def combine(self, round_, updates):
        return dict(list(updates[0].state.items())[:1]), {}


class OtherShape(SiteStrategy):
    def combine(self, round_, updates):
        return {key: value[:1] for key, value in updates[0].state.items()}, {}


class Stranger(SiteStrategy):
    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, dst_node_id=999, message_type="train")]

    def combine(self, round_, updates):
        return {}, {}


class KeepsAggregating(SiteStrategy):
    def aggregate_train(self, server_round, replies):
        return None, None


class Says(FedAvg):
    """Takes anything, sends what no site knows, and says much."""

    stateless = True

    def __init__(self, *, factor: "Unknown" = 1.0, names: list[str] | None = None, **more):
        super().__init__(**more)
        self.factor, self.names = factor, names

    def configure_train(self, server_round, arrays, config, grid):
        config["learning-rate-of-a-site"] = 0.1
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, _ = super().aggregate_train(server_round, list(replies))
        values = {"num-examples": 9, "norm": float("nan"), "each": [1, 2], "three": [1, 2, 3]}
        return arrays, MetricRecord(values)


class Raises(SiteStrategy):
    def __init__(self, *, n: int):
        raise RuntimeError("no good")

    def combine(self, round_, updates):
        return {}, {}
'''


@pytest.fixture
def bad_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bad_ones.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "broken_one.py").write_text("import no_such_package_x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("bad_ones", "broken_one"):
        sys.modules.pop(name, None)
    return "bad_ones"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Fails", "the strategy bad_ones:Fails failed. KeyError: 'oops'"),
        ("Stranger", "the strategy bad_ones:Stranger asks a node not of this round"),
        ("Nothing", "the strategy bad_ones:Nothing failed. TypeError: it returned no adapter"),
        ("NoState", "the strategy bad_ones:NoState failed. TypeError: it returned no adapter"),
        (
            "BareState",
            "bad_ones:BareState failed. TypeError: it returned no pair of an adapter and",
        ),
        ("Lists", "bad_ones:Lists failed. TypeError: it returned an adapter of other things than"),
        ("NoneWeights", "the strategy bad_ones:NoneWeights failed. TypeError: float() argument"),
        ("Words", "the strategy bad_ones:Words failed. TypeError: must be real number, not str"),
        ("NoMessages", "the strategy bad_ones:NoMessages failed. AttributeError: 'NoneType'"),
        ("BadMemory", "bad_ones:BadMemory failed. TypeError: save_state gives 'x' as object"),
        ("Ahead", "bad_ones:Ahead sends arrays that are not the round's adapter. sites train from"),
        ("Replaces", "bad_ones:Replaces sends arrays that are not the round's adapter"),
        ("More", "bad_ones:More sends arrays that are not the round's adapter"),
        ("AsksFewer", "bad_ones:AsksFewer needs 2 updates, round 0 has 1"),
        ("FewerKeys", "bad_ones:FewerKeys made an unusable adapter. the adapter lacks 1 of 2"),
        ("OtherShape", "bad_ones:OtherShape made an unusable adapter. the tensor has shape (1, 6)"),
    ],
)
def test_a_strategy_that_makes_no_adapter_is_named(
    bad_ones: str, tmp_path: Path, name: str, message: str
) -> None:
    config = settings(tmp_path, f"{bad_ones}:{name}")
    with pytest.raises(RoundError) as caught:
        run_server(make_grid(make_sites(tmp_path, [3, 1]), config), config)
    assert message in str(caught.value)


def test_a_strategy_that_fails_before_the_first_round_is_named(
    bad_ones: str, tmp_path: Path
) -> None:
    config = settings(tmp_path, f"{bad_ones}:BadPrepare")
    with pytest.raises(ConfigError, match=r"strategy bad_ones:BadPrepare failed\. KeyError: 'x'"):
        run_server(make_grid(make_sites(tmp_path, [3, 1]), config), config)
    with pytest.raises(ConfigError, match=r"strategy bad_ones:BadNeed failed.*'many', which is no"):
        made(f"{bad_ones}:BadNeed")


def test_the_adapter_of_the_round_may_be_sent_in_other_arrays(
    bad_ones: str, tmp_path: Path
) -> None:
    config = settings(tmp_path, f"{bad_ones}:Copies")
    run_server(make_grid(make_sites(tmp_path, [3, 1]), config), config)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bad_ones:WithFriend", "friend = 'x'", "the option friend is 'x'. use First"),
        ("bad_ones:WithFriend", "friend = 1", "the option friend is 1. use First"),
        (
            "flwr.serverapp.strategy:DifferentialPrivacyServerSideFixedClipping",
            "strategy = 'x', noise-multiplier = 1.0, clipping-norm = 1.0, num-sampled-clients = 3",
            "the option strategy is 'x'. use Strategy",
        ),
    ],
)
def test_text_is_no_object_of_a_class(bad_ones: str, name: str, options: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(name, options)
    assert message in str(caught.value)


def test_what_a_third_party_says_and_sends(
    bad_ones: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path, f"{bad_ones}:Says", "factor = 2, names = ['a']")
    with caplog.at_level(logging.INFO, logger="flwr"):
        run_server(make_grid(make_sites(tmp_path, [3, 1]), config), config)
    lines = (tmp_path / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    assert row["strategy"] == {
        "norm": None,
        "each": {"site-a": 1, "site-b": 2},
        "three": [1, 2, 3],
    }
    assert [entry["weight"] for entry in row["sites"].values()] == [None, None]
    warned = [r.getMessage() for r in caplog.records if "which no site uses" in r.getMessage()]
    assert len(warned) == 1
    assert "'learning-rate-of-a-site'" in warned[0]


def test_other_options_of_a_third_party(bad_ones: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made of these options.*unexpected keyword"):
        made(f"{bad_ones}:Says", "anything = 1")
    with pytest.raises(ConfigError, match=r"needs the option 'n'"):
        made(f"{bad_ones}:Raises")
    with pytest.raises(ConfigError, match=r"abstract method '?combine"):
        made(f"{bad_ones}:KeepsAggregating")
    with pytest.raises(ConfigError, match=r"RuntimeError: no good"):
        made(f"{bad_ones}:Raises", "n = 1")
    with pytest.raises(ConfigError, match=r"'broken_one' cannot be imported. ModuleNotFoundError"):
        made("broken_one:X")


def test_a_strategy_that_waits_for_other_sites_is_stopped() -> None:
    view = SitesOnly(grid=None, nodes=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(RoundError, match="waits for more than the round's 2 sites"):
        while len(list(view.get_node_ids())) < 3:
            pass


def test_weights_are_only_a_list_of_the_right_length() -> None:
    assert weights_by_site({"weights": [0.25, 0.75]}, ["a", "b"]) == {"a": 0.25, "b": 0.75}
    assert weights_by_site({"weights": [1.0]}, ["a", "b"]) is None
    assert weights_by_site({"weights": 1.0}, ["a"]) is None
    assert weights_by_site({}, ["a"]) is None
    assert weights_by_site({"weights": [float("nan")]}, ["a"]) == {"a": None}
    assert trace_by_site({"weights": [1.0]}, ["a", "b"]) == {"weights": [1.0]}
    assert trace_by_site(dict(ConfigRecord()), []) == {}


@pytest.mark.parametrize("name", ["fedavg", "FedAvg"])
def test_the_name_that_most_would_try_leads_to_ours(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(load_config({"strategy": name}))
    assert "'pair-fedavg'" in caught.value.fix
