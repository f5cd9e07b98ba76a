"""Whole runs with each strategy, against the same numbers worked by hand."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, random_state, run_server
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpref.adapter_state import AdapterState, initial_state, state_digest
from fedpref.config import load_config
from fedpref.errors import ResumeError
from fedpref.federation import wire
from fedpref.federation.aggregation import feddraw_weights, svd_aggregate, weighted_mean
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies import (
    LOCAL,
    NAMED,
    RunFacts,
    SiteStrategy,
    StrategyMemory,
    make_strategy,
    mean,
)
from fedpref.federation.strategies.build import sites_needed
from fedpref.federation.strategies.pair_fedavg import PairFedAvg
from fedpref.residual import load_served
from fedpref.training.adjustment import Adjustment

SEED = 20260713
COUNTS = [5, 3, 1, 4, 2, 6]
NAMES = [f"site-{letter}" for letter in "abcdef"]
SHARES = {name: count / sum(COUNTS) for name, count in zip(NAMES, COUNTS, strict=True)}
AGGREGATING = [name for name in NAMED if name != LOCAL]
EXAMPLES = Path(__file__).parents[2] / "examples"


def settings(folder: Path, strategy: str, options: str = "", **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 2, "join-deadline": 2.0}
    base |= {"strategy": strategy, "strategy-options": options}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def served(folder: Path, round_: int) -> AdapterState:
    return load_served(folder / "runs" / "r" / "adapters" / f"round-{round_}", SPEC)


def run(
    folder: Path,
    config: Mapping[str, Any],
    counts: Sequence[int] = COUNTS,
    **options: Any,
) -> list[FakeWork]:
    sites = make_sites(folder, counts)
    run_server(make_grid(sites, config, **options), config)
    return sites


def updates_of(
    folder: Path, round_: int, counts: Sequence[int] = COUNTS, **adjusted: Any
) -> list[AdapterState]:
    """What the sites of a finished run sent in a round, worked out again."""
    start = served(folder, round_ - 1) if round_ else initial_state(SPEC, SEED)
    root = served(folder, 0) if round_ else None
    trained = [
        site.train(round_, start, root, Adjustment(**adjusted))
        for site in make_sites(folder / "again", counts)
    ]
    return [update.state for update in trained if update is not None]


def weights_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {site: entry["weight"] for site, entry in row["sites"].items()}


def assert_close(found: AdapterState, expected: Mapping[str, Any], rtol: float = 1e-5) -> None:
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=rtol, atol=1e-6, err_msg=key)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of three rounds with each strategy, options as they are."""
    folders = {}
    for name in AGGREGATING:
        folders[name] = tmp_path_factory.mktemp(name)
        run(folders[name], settings(folders[name], name))
    return folders


@pytest.mark.parametrize("name", AGGREGATING)
def test_each_strategy_runs_and_says_what_it_weighed(finished: dict[str, Path], name: str) -> None:
    for row in rows(finished[name]):
        weights = weights_of(row)
        if name in ("FedMedian", "FedTrimmedAvg"):
            assert set(weights.values()) == {None}
        else:
            assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
            assert min(weights.values()) >= 0
        assert bool(row["strategy"]) == (name in ("feddraw", "fedex", "QFedAvg"))
    # Three different adapters, each of them saved.
    assert len({state_digest(served(finished[name], t)) for t in range(3)}) == 3


@pytest.mark.parametrize("name", ["feddraw", "svd", "fedex", "Krum", "FedAdam"])
def test_which_node_a_site_is_changes_nothing(
    finished: dict[str, Path], tmp_path: Path, name: str
) -> None:
    config = settings(tmp_path, name)
    order = [3, 0, 5, 1, 4, 2]
    sites = make_sites(tmp_path, COUNTS)
    run_server(make_grid([sites[i] for i in order], config), config)
    for t in range(3):
        assert state_digest(served(tmp_path, t)) == state_digest(served(finished[name], t))
    strip = [{**row, "seconds": 0, "bytes": 0, "sites": weights_of(row)} for row in rows(tmp_path)]
    assert strip == [
        {**row, "seconds": 0, "bytes": 0, "sites": weights_of(row)} for row in rows(finished[name])
    ]


@pytest.mark.parametrize("round_", range(3))
def test_means(finished: dict[str, Path], round_: int) -> None:
    for name, counts in (("pair-fedavg", COUNTS), ("uniform", [1] * 6)):
        updates = updates_of(finished[name], round_)
        assert state_digest(served(finished[name], round_)) == state_digest(
            weighted_mean(updates, counts)
        )
    uniform = weights_of(rows(finished["uniform"])[round_])
    assert set(uniform.values()) == {1 / 6}
    folder = finished["FedProx"]
    assert_close(served(folder, round_), weighted_mean(updates_of(folder, round_), COUNTS))
    for name in ("FedProx", "FedAvgM", "FedAdam", "FedYogi", "svd", "ffa"):
        assert weights_of(rows(finished[name])[round_]) == pytest.approx(SHARES)


@pytest.mark.parametrize("round_", range(3))
def test_svd_serves_the_best_adapter_of_the_product(finished: dict[str, Path], round_: int) -> None:
    folder = finished["svd"]
    start = served(folder, round_ - 1) if round_ else initial_state(SPEC, SEED)
    updates = updates_of(folder, round_)
    best = svd_aggregate(updates, COUNTS, [SPEC.scale] * 6, rank=SPEC.rank, near=start)
    assert state_digest(served(folder, round_)) == state_digest(best)


def test_robust_strategies_by_hand(finished: dict[str, Path]) -> None:
    for round_ in range(3):
        folder = finished["FedMedian"]
        updates = updates_of(folder, round_)
        assert_close(
            served(folder, round_),
            {key: np.median([u[key] for u in updates], axis=0) for key in SPEC.keys},
        )
        folder = finished["FedTrimmedAvg"]  # int(0.2 · 6) = 1 at either end
        updates = updates_of(folder, round_)
        assert_close(
            served(folder, round_),
            {
                key: np.sort([u[key] for u in updates], axis=0)[1:-1].mean(axis=0)
                for key in SPEC.keys
            },
        )
        folder = finished["Krum"]
        updates = updates_of(folder, round_)
        flat = np.array([np.concatenate([u[k].ravel() for k in SPEC.keys]) for u in updates])
        distances = np.sort(((flat[:, None] - flat[None]) ** 2).sum(axis=-1), axis=1)
        chosen = int(distances[:, 1:5].sum(axis=1).argmin())  # itself left out, n − f − 2 = 4
        assert state_digest(served(folder, round_)) == state_digest(updates[chosen])
        weights = weights_of(rows(folder)[round_])
        assert weights == {name: float(i == chosen) for i, name in enumerate(NAMES)}


def test_server_optimisers_by_hand(finished: dict[str, Path]) -> None:
    folder, velocity = finished["FedAvgM"], dict.fromkeys(SPEC.keys, np.float64(0))
    for t in range(3):
        start = served(folder, t - 1) if t else initial_state(SPEC, SEED)
        mean = weighted_mean(updates_of(folder, t), COUNTS)
        velocity = {k: 0.9 * velocity[k] + (start[k] - mean[k]) for k in SPEC.keys}
        assert_close(served(folder, t), {k: start[k] - velocity[k] for k in SPEC.keys})
    for name in ("FedAdam", "FedYogi"):
        folder = finished[name]
        m = dict.fromkeys(SPEC.keys, np.float64(0))
        v = dict.fromkeys(SPEC.keys, np.float64(0))
        for t in range(3):
            start = served(folder, t - 1) if t else initial_state(SPEC, SEED)
            mean = weighted_mean(updates_of(folder, t), COUNTS)
            delta = {k: mean[k].astype(np.float64) - start[k] for k in SPEC.keys}
            m = {k: 0.9 * m[k] + 0.1 * delta[k] for k in SPEC.keys}
            rate = 0.01
            if name == "FedAdam":
                v = {k: 0.99 * v[k] + 0.01 * delta[k] ** 2 for k in SPEC.keys}
                rate *= np.sqrt(1 - 0.99 ** (t + 2)) / (1 - 0.9 ** (t + 2))
            else:
                sign = {k: np.sign(v[k] - delta[k] ** 2) for k in SPEC.keys}
                v = {k: v[k] - 0.01 * delta[k] ** 2 * sign[k] for k in SPEC.keys}
            expected = {k: start[k] + rate * m[k] / (np.sqrt(v[k]) + 1e-3) for k in SPEC.keys}
            assert_close(served(folder, t), expected, rtol=1e-3)


def test_what_sites_are_asked_to_change(tmp_path: Path) -> None:
    for number, (name, options, expected) in enumerate(
        [
            ("pair-fedavg", "", Adjustment()),
            ("FedProx", "proximal-mu = 0.5", Adjustment(proximal_mu=0.5)),
            ("FedMedian", "", Adjustment()),
            ("ffa", "", Adjustment(freeze_a=True)),
            ("QFedAvg", "", Adjustment(report_loss=True)),
        ]
    ):
        folder = tmp_path / str(number)
        for site in run(folder, settings(folder, name, options, rounds=1)):
            assert site.adjustments == [expected] * 2


@pytest.mark.parametrize("format_", ["float32", "int4"])
def test_ffa_keeps_the_initial_a_whatever_the_wire(tmp_path: Path, format_: str) -> None:
    run(tmp_path, settings(tmp_path, "ffa", wire=format_))
    initial = initial_state(SPEC, SEED)
    for t in range(3):
        for key, value in served(tmp_path, t).items():
            assert np.array_equal(value, initial[key]) == (".lora_A." in key)


def test_ffa_averages_the_products_exactly(finished: dict[str, Path]) -> None:
    a, b = SPEC.keys
    for t in range(3):
        updates = updates_of(finished["ffa"], t, freeze_a=True)
        state = served(finished["ffa"], t)
        exact = sum(
            share * (u[b].astype(np.float64) @ u[a])
            for share, u in zip(SHARES.values(), updates, strict=True)
        )
        np.testing.assert_allclose(state[b].astype(np.float64) @ state[a], exact, atol=1e-6)


def test_ffa_sends_lora_b_only_in_both_directions(tmp_path: Path) -> None:
    up = {}
    for name in ("pair-fedavg", "ffa"):
        folder = tmp_path / name
        config = settings(folder, name)
        grid = make_grid(make_sites(folder, COUNTS), config)
        run_server(grid, config)
        up[name] = sum(row["bytes"]["up"] for row in rows(folder))
        down = [m.content[wire.ARRAYS] for m in grid.sent if wire.ARRAYS in m.content]
        assert len(down) == 18
        a, b = (4 * int(np.prod(shape)) for shape in SPEC.shapes)
        for arrays in down:
            ((_, array),) = arrays.items()
            assert array.numpy().nbytes == (b if name == "ffa" else a + b)
    # The counts of the evaluations differ, too.
    assert up["pair-fedavg"] - up["ffa"] == pytest.approx(18 * a, abs=36)


@pytest.mark.parametrize("format_", ["float32", "int4"])
def test_ffa_goes_on_without_a_site_that_trained_a(tmp_path: Path, format_: str) -> None:
    sites = make_sites(tmp_path, [3, 1, 4])
    trains = sites[1].train
    # As a site would that knows no such setting.
    sites[1].train = lambda round_, start, root, _: trains(round_, start, root)  # type: ignore[method-assign,misc]
    config = settings(tmp_path, "ffa", quorum=2, wire=format_)
    run_server(make_grid(sites, config), config)
    for row in rows(tmp_path):
        assert row["refused"]["training"] == {"site-b": "lora_A has changed, it was to stay frozen"}
        assert weights_of(row) == pytest.approx({"site-a": 3 / 7, "site-b": 0, "site-c": 4 / 7})
    initial, last = initial_state(SPEC, SEED), served(tmp_path, 2)
    assert np.array_equal(last[SPEC.keys[0]], initial[SPEC.keys[0]])


# q-FedAvg


def test_q_fedavg_by_hand_on_one_number() -> None:
    # Li et al. 2020, Algorithm 2 with L = 1/0.5 = 2, q = 1: w = 0, w_1 = -1, w_2 = 1, F = 1, 3.
    # Δw_k = L·(w − w_k) = 2, −2;  Δ_k = F_k·Δw_k = 2, −6;  h_k = Δw_k² + L·F_k = 4 + 2, 4 + 6
    # w' = 0 − (2 − 6)/(6 + 10) = 0.25
    strategy: Any = make_strategy(
        load_config(
            {"strategy": "QFedAvg", "strategy-options": "q = 1, client-learning-rate = 0.5"}
        )
    )
    start = {
        key: np.zeros(shape, np.float32) for key, shape in zip(SPEC.keys, SPEC.shapes, strict=True)
    }
    configure(strategy, start, 1)
    replies = []
    for site, value, loss in (("site-a", -1, 1.0), ("site-b", 1, 3.0)):
        moved = {key: array.copy() for key, array in start.items()}
        moved[SPEC.keys[1]][2, 1] = value
        replies.append(reply(site, moved, 7))
        replies[-1].content[wire.METRICS][wire.TRAIN_LOSS] = loss
    arrays, metrics = strategy.aggregate_train(1, replies)
    start[SPEC.keys[1]][2, 1] = 0.25
    assert_close(wire.read_keyed(arrays), start)
    assert metrics["weights"] == pytest.approx([0.25, 0.75])


def q_step(folder: Path, t: int, q: float, rate: float) -> AdapterState:
    """A step of q-FedAvg as a damped, weighted mean of what the sites changed, in float64."""
    start = served(folder, t - 1) if t else initial_state(SPEC, SEED)
    updates, losses = updates_of(folder, t), losses_of(folder, t)
    moved = [{k: u[k].astype(np.float64) - start[k] for k in SPEC.keys} for u in updates]
    squares = [sum(float((m[k] ** 2).sum()) for k in SPEC.keys) for m in moved]
    parts = [loss**q for loss in losses]
    damped = sum(
        part * (1 + q * square / (rate * loss))
        for part, square, loss in zip(parts, squares, losses, strict=True)
    )
    return {
        k: start[k] + sum(p * m[k] for p, m in zip(parts, moved, strict=True)) / damped
        for k in SPEC.keys
    }


def losses_of(folder: Path, t: int) -> list[float]:
    sites = make_sites(folder / "losses", COUNTS)
    start = initial_state(SPEC, SEED)
    return [site.train(t, start, start).mean_loss for site in sites]  # type: ignore[union-attr]


def test_q_fedavg_damps_and_leans_to_high_losses(finished: dict[str, Path]) -> None:
    folder = finished["QFedAvg"]
    for t, row in enumerate(rows(folder)):
        assert_close(served(folder, t), q_step(folder, t, 0.1, 10.0), rtol=1e-4)
        losses = losses_of(folder, t)
        assert row["strategy"] == {"train_losses": dict(zip(NAMES, losses, strict=True))}
        powers = np.array(losses) ** 0.1
        assert list(weights_of(row).values()) == pytest.approx((powers / powers.sum()).tolist())


def test_q_of_0_is_the_plain_mean_whatever_the_rate(tmp_path: Path) -> None:
    run(tmp_path, settings(tmp_path, "QFedAvg", "q = 0, client-learning-rate = 0.001", rounds=1))
    for t in range(2):
        mean = weighted_mean(updates_of(tmp_path, t), [1] * 6)
        assert_close(served(tmp_path, t), mean, rtol=1e-3)


def test_only_who_asks_gets_the_training_loss(tmp_path: Path) -> None:
    for name in ("pair-fedavg", "QFedAvg", "FedAvgM"):
        folder = tmp_path / name
        config = settings(folder, name, rounds=1)
        grid = make_grid(make_sites(folder, [3, 1]), config)
        run_server(grid, config)
        metrics = [
            set(m.content.metric_records[wire.METRICS])
            for m in grid.replies
            if m.metadata.message_type == "train"
        ]
        assert metrics == [{wire.NUM_EXAMPLES, *([wire.TRAIN_LOSS] * (name == "QFedAvg"))}] * 4


# FedDRAW


def feddraw_by_hand(folder: Path, round_: int, last: int, **options: Any) -> Any:
    start = served(folder, round_ - 1) if round_ else initial_state(SPEC, SEED)
    return feddraw_weights(
        updates_of(folder, round_), start, COUNTS, round=round_, last_round=last, **options
    )


def test_feddraw_weighs_as_it_says(finished: dict[str, Path]) -> None:
    folder = finished["feddraw"]
    for t, row in enumerate(rows(folder)):
        expected = feddraw_by_hand(folder, t, 2)
        assert list(weights_of(row).values()) == expected.tolist()
        assert_close(served(folder, t), weighted_mean(updates_of(folder, t), expected.tolist()))
        trace = row["strategy"]
        assert set(trace) == {"gamma", "beta", "sizes", "similarities", "reputations"}
        assert trace["gamma"] == pytest.approx(np.exp(-t))
        assert trace["sizes"] == pytest.approx(SHARES)
        for site in NAMES:
            mixed = (
                trace["gamma"] * SHARES[site] + (1 - trace["gamma"]) * (trace["similarities"][site])
            )
            assert trace["reputations"][site] == pytest.approx(mixed)
    first, *_, last = rows(folder)
    assert first["strategy"]["beta"] == 10
    powers = np.exp(10 * np.array(list(SHARES.values())))
    assert list(weights_of(first).values()) == pytest.approx((powers / powers.sum()).tolist())
    assert last["strategy"]["beta"] == 0
    assert set(weights_of(last).values()) == {1 / 6}


@pytest.mark.parametrize(
    "options",
    [
        {"eta": 2.0, "beta_max": 3, "kappa": 0.5},
        {"similarity": "factors"},
        {"similarity": "update", "whole_model": True},
        {"ablation": "inner"},
        {"ablation": "outer"},
    ],
)
def test_options_of_feddraw_arrive(tmp_path: Path, options: dict[str, Any]) -> None:
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    run(tmp_path, settings(tmp_path, "feddraw", text))
    for t, row in enumerate(rows(tmp_path)):
        expected = feddraw_by_hand(tmp_path, t, 2, **options)
        assert list(weights_of(row).values()) == expected.tolist()


def test_one_site_has_all_the_weight(tmp_path: Path) -> None:
    for name in ("pair-fedavg", "uniform", "feddraw", "fedex", "ffa"):
        run(tmp_path / name, settings(tmp_path / name, name, min_sites=1), [5])
        for row in rows(tmp_path / name):
            assert weights_of(row) == {"site-a": 1.0}


def reply(site: str, state: AdapterState, pairs: int) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    content = {
        wire.ARRAYS: wire.keyed_record(state),
        wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: pairs}),
        wire.CONFIG: ConfigRecord({wire.SITE: site}),
    }
    return Message(RecordDict(content), dst_node_id=1, message_type="train")


class OneNode:
    def get_node_ids(self) -> Iterable[int]:
        return [7]


def configure(strategy: Any, start: AdapterState, round_: int) -> None:
    list(strategy.configure_train(round_, wire.keyed_record(start), ConfigRecord(), OneNode()))


@pytest.mark.parametrize("name", ["pair-fedavg", "uniform", "feddraw", "svd", "Krum"])
def test_permuting_updates_permutes_weights(name: str) -> None:
    states = [random_state(i) for i in range(4)]
    found = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        strategy: Any = make_strategy(load_config({"strategy": name}))
        if hasattr(strategy, "prepare"):
            strategy.prepare(RunFacts(tuple(NAMES[:4]), 3, SPEC))
        configure(strategy, random_state(9), 2)
        one_shot = iter([reply(NAMES[i], states[i], COUNTS[i]) for i in order])
        arrays, metrics = strategy.aggregate_train(2, one_shot)
        weights = dict(zip(order, metrics["weights"], strict=True))
        found.append((wire.read_keyed(arrays), [weights[i] for i in range(4)]))
    assert found[0][1] == pytest.approx(found[1][1])
    assert_close(found[0][0], found[1][0])


# Over a resume


class Killed(BaseException):
    """Ends the server at once, as a signal would."""


def killed_at(kind: str, nth: int) -> Any:
    seen = {"n": 0}

    def tamper(site: int, message: Message) -> Message:
        if message.metadata.message_type == kind:
            seen["n"] += 1
            if seen["n"] == nth:
                raise Killed
        return message

    return tamper


# In round 2, and with round 1 trained and not yet evaluated.
STOPS = [("train", 14), ("evaluate", 8)]


def stop(folder: Path, config: Mapping[str, Any], kind: str, nth: int) -> list[FakeWork]:
    sites = make_sites(folder, COUNTS)
    with pytest.raises(Killed):
        run_server(make_grid(sites, config, tamper=killed_at(kind, nth)), config)
    return sites


@pytest.mark.parametrize(
    ("name", "kind", "nth"),
    [(name, *at) for name in ("FedAvgM", "FedAdam", "FedYogi") for at in STOPS]
    + [("feddraw", "train", 8), ("ffa", "evaluate", 2), ("fedex", "train", 14)]
    + [("svd", *at) for at in STOPS],
)
def test_a_resumed_run_equals_a_whole_one(
    finished: dict[str, Path], tmp_path: Path, name: str, kind: str, nth: int
) -> None:
    sites = stop(tmp_path, settings(tmp_path, name), kind, nth)
    config = settings(tmp_path, name, resume=str(tmp_path / "runs" / "r"))
    run_server(make_grid(sites, config), config)
    for t in range(3):
        assert state_digest(served(tmp_path, t)) == state_digest(served(finished[name], t))
    assert [row["strategy"] for row in rows(tmp_path)] == [
        row["strategy"] for row in rows(finished[name])
    ]


def test_only_the_last_state_is_kept(finished: dict[str, Path]) -> None:
    kept = sorted(p.name for p in (finished["FedAdam"] / "runs" / "r" / "strategy").iterdir())
    assert kept == ["round-1.safetensors", "round-2.safetensors"]
    assert not (finished["feddraw"] / "runs" / "r" / "strategy").exists()


def test_a_lost_state_is_refused_by_name(tmp_path: Path) -> None:
    sites = stop(tmp_path, settings(tmp_path, "FedAdam"), "train", 14)
    for path in (tmp_path / "runs" / "r" / "strategy").iterdir():
        path.write_bytes(b"x")
    config = settings(tmp_path, "FedAdam", resume=str(tmp_path / "runs" / "r"))
    with pytest.raises(ResumeError, match="state of the strategy FedAdam after round 1"):
        run_server(make_grid(sites, config), config)


def test_a_strategy_that_does_not_say_what_it_keeps_cannot_be_resumed(tmp_path: Path) -> None:
    name = "flwr.serverapp.strategy:FedAdagrad"
    sites = stop(tmp_path, settings(tmp_path, name), "train", 8)
    config = settings(tmp_path, name, resume=str(tmp_path / "runs" / "r"))
    with pytest.raises(ResumeError, match=r"strategy flwr\.serverapp\.strategy:FedAdagrad cannot"):
        run_server(make_grid(sites, config), config)


class Momentum(SiteStrategy):
    """Remembers, and says nothing of it."""

    def __init__(self) -> None:
        self.sum: AdapterState | None = None

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> Any:
        state, said = mean(updates, [1] * len(updates))
        if self.sum is not None:
            state = {key: value + self.sum[key] for key, value in state.items()}
        self.sum = state
        return state, said


class MomentumOfOurs(PairFedAvg):
    """The same on a base that keeps nothing."""

    combine = Momentum.combine
    sum: AdapterState | None = None


class Forgetful(MomentumOfOurs):
    stateless = True


@pytest.mark.parametrize("kind", [Momentum, MomentumOfOurs, Forgetful])
def test_only_a_class_that_says_so_itself_keeps_nothing(
    tmp_path: Path, kind: type[SiteStrategy]
) -> None:
    memory = StrategyMemory(tmp_path, kind(), "mine:X")
    memory.keep(1)
    memory.recall(-1)
    if kind is Forgetful:
        memory.recall(1)
        return
    with pytest.raises(ResumeError, match="run with the strategy mine:X cannot be resumed"):
        memory.recall(1)


def test_every_named_strategy_can_be_resumed(tmp_path: Path) -> None:
    for name, entry in NAMED.items():
        kept = hasattr(entry.strategy, "save_state")
        assert kept != vars(entry.strategy).get("stateless", False), name


def test_other_options_are_another_run(tmp_path: Path) -> None:
    sites = stop(tmp_path, settings(tmp_path, "feddraw", "eta = 1.0"), "train", 8)
    config = settings(tmp_path, "feddraw", "eta = 2.0", resume=str(tmp_path / "runs" / "r"))
    with pytest.raises(ResumeError, match=r"key strategy-options: was .eta = 1\.0."):
        run_server(make_grid(sites, config), config)


def test_momentum_starts_from_the_adapter_of_record(tmp_path: Path) -> None:
    # A lossy wire serves another adapter than the strategy made.
    run(tmp_path, settings(tmp_path, "FedAvgM", "server-momentum = 0.0", wire="int4"))
    strategy: Any = make_strategy(load_config({"strategy": "FedAvgM"}))
    first, second, update = random_state(1), random_state(2), random_state(3)
    configure(strategy, first, 1)
    strategy.aggregate_train(1, [reply("site-a", update, 3)])
    configure(strategy, second, 2)
    arrays, _ = strategy.aggregate_train(2, [reply("site-a", update, 3)])
    expected = {
        k: second[k] - (0.9 * (first[k] - update[k]) + (second[k] - update[k])) for k in SPEC.keys
    }
    assert_close(wire.read_keyed(arrays), expected)


# A third party's


def test_the_worked_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "capped-mean"))
    for number, path in enumerate(["capped_mean:CappedMean", "capped_mean.CappedMean"]):
        folder = tmp_path / str(number)
        run(folder, settings(folder, path, "cap = 0.4"), [8, 1, 1])
        for t, row in enumerate(rows(folder)):
            assert weights_of(row) == pytest.approx({"site-a": 0.4, "site-b": 0.3, "site-c": 0.3})
            assert row["strategy"] == {"capped": 1}
            assert_close(
                served(folder, t),
                weighted_mean(updates_of(folder, t, [8, 1, 1]), [0.4, 0.3, 0.3]),
            )
    from capped_mean import CappedMean, capped_shares

    assert vars(CappedMean)["stateless"] is True

    assert capped_shares([1, 1, 2], 1.0) == [0.25, 0.25, 0.5]
    assert capped_shares([6, 3, 1], 0.4) == pytest.approx([0.4, 0.4, 0.2])
    assert capped_shares([5, 1], 0.5) == [0.5, 0.5]
    sys.modules.pop("capped_mean")


def test_a_class_of_flower_by_path_neither_waits_nor_samples(tmp_path: Path) -> None:
    name = "flwr.serverapp.strategy.FedAvg"
    run(tmp_path, settings(tmp_path, name, min_sites=1, rounds=0), [5])
    (update,) = updates_of(tmp_path, 0, [5])
    assert_close(served(tmp_path, 0), update)
    strategy: Any = make_strategy(load_config({"strategy": name}))
    assert (strategy.fraction_train, strategy.min_train_nodes) == (1.0, 1)
    assert sites_needed(strategy, name) == 1
