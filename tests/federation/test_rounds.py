"""Whole runs of the ServerApp against fake sites in this process."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, random_state, run_server
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from fedpref.adapter_state import initial_state, load_adapter, pack, state_digest
from fedpref.errors import (
    ConfigError,
    DataError,
    FedPrefError,
    FedPrefErrors,
    HandshakeError,
    RoundError,
)
from fedpref.federation import wire
from fedpref.federation.aggregation import weighted_mean


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 2, "join-deadline": 2.0}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def records(folder: Path, run: str = "r") -> list[dict[str, Any]]:
    lines = (folder / "runs" / run / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def adapter(folder: Path, round_: int, run: str = "r") -> dict[str, np.ndarray]:
    return load_adapter(folder / "runs" / run / "adapters" / f"round-{round_}", SPEC)


def run(folder: Path, sites: list[FakeWork], config: Mapping[str, Any], **options: Any) -> Any:
    grid = make_grid(sites, config, **options)
    run_server(grid, config)
    return grid


def test_the_rounds_follow_the_method(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1, 4])
    run(tmp_path, sites, settings(tmp_path))

    # The same by hand: SFT from the initial adapter, then DPO with the round-0 average as root.
    by_hand = make_sites(tmp_path / "hand", [3, 1, 4])
    current, root = initial_state(SPEC, 20260713), None
    for t in range(3):
        current = weighted_mean([s.train(t, current, root).state for s in by_hand], [3, 1, 4])
        root = current if t == 0 else root
        assert state_digest(adapter(tmp_path, t)) == state_digest(current)
    rows = records(tmp_path)
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["stage"] for row in rows] == ["sft", "dpo", "dpo"]
    assert {row["root"] for row in rows} == {state_digest(root)}
    assert [rows[0]["sites"][s]["pairs"] for s in ("site-a", "site-b", "site-c")] == [3, 1, 4]
    assert rows[0]["sites"]["site-a"]["weight"] == 3 / 8
    summary = json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["adapter"] == "adapters/round-2"
    assert not (tmp_path / "runs" / "r" / "open").exists()


def test_every_site_evaluates_every_adapter(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 0])
    run(tmp_path, sites, settings(tmp_path, rounds=1))
    for site in sites:
        assert site.calls == [("train", 0), ("evaluate", 0), ("train", 1), ("evaluate", 1)]


def test_arrival_order_does_not_change_a_bit(tmp_path: Path) -> None:
    for name, delays in (("x", [0.0, 0.1, 0.2]), ("y", [0.2, 0.1, 0.0])):
        folder = tmp_path / name
        run(
            folder,
            make_sites(folder, [3, 1, 4]),
            settings(folder),
            delay=lambda site, _, delays=delays: delays[site],
        )
    for t in range(3):
        assert state_digest(adapter(tmp_path / "x", t)) == state_digest(adapter(tmp_path / "y", t))


def test_one_site_equals_training_alone(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [5])
    run(tmp_path, sites, settings(tmp_path, rounds=1, min_sites=1))
    alone = sites[0].train(0, initial_state(SPEC, 20260713), None).state
    assert state_digest(adapter(tmp_path, 0)) == state_digest(alone)
    assert state_digest(adapter(tmp_path, 1)) == state_digest(sites[0].train(1, alone, alone).state)


# A1: no site trained


def test_a_site_without_pairs_has_no_weight_and_is_no_fault(tmp_path: Path) -> None:
    run(tmp_path, make_sites(tmp_path, [3, 0]), settings(tmp_path, rounds=0))
    alone = make_sites(tmp_path / "x", [3])[0].train(0, initial_state(SPEC, 20260713), None).state
    assert state_digest(adapter(tmp_path, 0)) == state_digest(alone)
    row = records(tmp_path)[0]
    assert row["refused"] == {"training": {}, "evaluation": {}}
    assert row["sites"]["site-b"]["pairs"] == 0
    assert row["sites"]["site-b"]["weight"] == 0.0
    assert row["sites"]["site-b"]["counts"]["reports"] == 40


def test_a_round_in_which_no_site_trained_leaves_the_adapter_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, make_sites(tmp_path, [0, 0, 0]), settings(tmp_path, rounds=1))
    initial = state_digest(initial_state(SPEC, 20260713))
    assert [state_digest(adapter(tmp_path, t)) for t in (0, 1)] == [initial, initial]
    assert [row["trained"] for row in records(tmp_path)] == [False, False]


# A2 and the other guards: a bad update is left out by name


def change_update(site: int, change: Any) -> Any:
    """A tamper function for the train reply of one site."""

    def tamper(number: int, reply: Message) -> Message:
        if number == site and wire.ARRAYS in reply.content:
            change(reply)
        return reply

    return tamper


def replace_flat(change: Any, *, honest_hash: bool = True) -> Any:
    def apply(reply: Message) -> None:
        ((name, array),) = reply.content[wire.ARRAYS].items()
        flat = change(array.numpy().copy())
        if honest_hash and flat.shape == (SPEC.parameter_count,) and flat.dtype == np.float32:
            from fedpref.adapter_state import unpack

            name = state_digest(unpack(flat, SPEC))
            reply.content[wire.CONFIG][wire.ADAPTER_HASH] = name
        reply.content[wire.ARRAYS] = ArrayRecord({name: Array(flat)})

    return apply


def with_value(index: int, value: float) -> Any:
    def change(flat: np.ndarray) -> np.ndarray:
        flat[index] = value
        return flat

    return change


def set_config(name: str, value: Any) -> Any:
    def apply(reply: Message) -> None:
        reply.content[wire.CONFIG][name] = value

    return apply


def set_count(value: Any) -> Any:
    def apply(reply: Message) -> None:
        reply.content[wire.METRICS] = MetricRecord({wire.NUM_EXAMPLES: value})

    return apply


def extra_array(reply: Message) -> None:
    reply.content[wire.ARRAYS]["more"] = Array(np.zeros(3, dtype=np.float32))


def garbage(reply: Message) -> None:
    name = next(iter(reply.content[wire.ARRAYS]))
    broken = Array("float32", (3,), "numpy.ndarray", b"no array at all")
    reply.content[wire.ARRAYS] = ArrayRecord({name: broken})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replace_flat(with_value(5, np.nan)), "NaN or infinity in 1 tensors"),
        (replace_flat(with_value(13, np.inf)), "NaN or infinity"),
        (replace_flat(lambda flat: flat[:-1]), "flat adapter has shape"),
        (replace_flat(lambda flat: np.append(flat, flat)), "flat adapter has shape"),
        (replace_flat(lambda flat: flat.astype(np.float64)), "float64"),
        (replace_flat(lambda flat: flat.reshape(4, 5)), "flat adapter has shape (4, 5)"),
        (replace_flat(with_value(5, 2.0), honest_hash=False), "does not match its hash"),
        (extra_array, "2 arrays, not 1"),
        (garbage, "cannot be decoded"),
        (set_count(0), "not a positive integer"),
        (set_count(-3), "not a positive integer"),
        (set_count(2.0), "not a positive integer"),
        (set_count(10**9), "1000000000 pairs were trained, 1 were stated"),
        (set_config(wire.ROUND, 7), "another round"),
        (set_config(wire.SITE, "site-c"), "another site"),
        (set_config(wire.FEDERATION, "other"), "another federation"),
        (set_config(wire.BASE_HASH, "0" * 64), "builds on another adapter"),
        (set_config(wire.STATUS, "great"), "unexpected status"),
    ],
)
def test_a_bad_update_is_left_out_and_named(tmp_path: Path, change: Any, reason: str) -> None:
    run(
        tmp_path,
        make_sites(tmp_path, [3, 1, 4]),
        settings(tmp_path, rounds=0, quorum=2),
        tamper=change_update(1, change),
    )
    start = initial_state(SPEC, 20260713)
    a, _, c = (site.train(0, start, None).state for site in make_sites(tmp_path / "x", [3, 1, 4]))
    assert state_digest(adapter(tmp_path, 0)) == state_digest(weighted_mean([a, c], [3, 4]))
    row = records(tmp_path)[0]
    assert list(row["refused"]["training"]) == ["site-b"]
    assert reason in row["refused"]["training"]["site-b"]


def test_without_a_quorum_the_round_fails_and_names_site_and_reason(tmp_path: Path) -> None:
    with pytest.raises(RoundError, match=r"2 of 3 sites .* quorum is 3.*site-b: NaN or infinity"):
        run(
            tmp_path,
            make_sites(tmp_path, [3, 1, 4]),
            settings(tmp_path, rounds=0),
            tamper=change_update(1, replace_flat(with_value(5, np.nan))),
        )
    assert not (tmp_path / "runs" / "r" / "summary.json").exists()


def test_bad_evaluation_counts_are_no_data_never_zero(tmp_path: Path) -> None:
    def tamper(site: int, reply: Message) -> Message:
        if site == 1 and "tp" in reply.content.metric_records.get(wire.METRICS, {}):
            reply.content[wire.METRICS]["tp"] = -1
        return reply

    sites = make_sites(tmp_path, [3, 1])
    run(tmp_path, sites, settings(tmp_path, rounds=0, quorum=1), tamper=tamper)
    row = records(tmp_path)[0]
    assert row["sites"]["site-b"]["counts"] is None
    assert row["sites"]["site-b"]["location_disease_f1"] is None
    assert row["client_mean"] == row["sites"]["site-a"]["location_disease_f1"]
    assert "tp is negative" in row["refused"]["evaluation"]["site-b"]


def test_counts_below_the_policy_are_withheld(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    sites[1].dev_reports = None
    run(tmp_path, sites, settings(tmp_path, rounds=0))
    entry = records(tmp_path)[0]["sites"]["site-b"]
    assert entry["counts"] is None
    assert entry["no_counts_because"] == "withheld by the site's policy"


# A3, A4: waiting


def test_too_few_sites_end_the_wait_and_are_counted(tmp_path: Path) -> None:
    config = settings(tmp_path, min_sites=2, join_deadline=0.5)
    with pytest.raises(HandshakeError, match=r"1 of 2 sites joined.*joined: site-a"):
        run(tmp_path, make_sites(tmp_path, [3]), config)


def test_nodes_that_register_late_are_waited_for(tmp_path: Path) -> None:
    run(tmp_path, make_sites(tmp_path, [3, 1, 4]), settings(tmp_path, rounds=0), late_nodes=2)
    assert records(tmp_path)[0]["sites"]["site-c"]["pairs"] == 4


def test_without_any_number_of_sites_the_run_is_refused(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match="set min-sites"):
        run(
            tmp_path,
            make_sites(tmp_path, [3]),
            settings(tmp_path, join_deadline=30.0),
            node_configs=[{"partition-id": 0}],
        )
    assert time.monotonic() - started < 5


def test_a_slow_site_is_left_out_and_its_late_reply_never_enters(tmp_path: Path) -> None:
    slow = {"n": 0}

    def delay(site: int, message: Message) -> float:
        # Only the first train message is slow; its reply would be there during round 1.
        if site == 1 and message.metadata.message_type == "train":
            slow["n"] += 1
            return 0.9 if slow["n"] == 1 else 0.0
        return 0.0

    config = settings(tmp_path, rounds=1, quorum=2, round_deadline=0.6)
    run(tmp_path, make_sites(tmp_path, [3, 1, 4]), config, delay=delay)
    first, second = records(tmp_path)
    assert "no reply within round-deadline" in first["refused"]["training"]["site-b"]
    assert first["sites"]["site-a"]["weight"] == 3 / 7
    assert second["refused"]["training"] == {}

    twins = make_sites(tmp_path / "x", [3, 1, 4])
    start = initial_state(SPEC, 20260713)
    root = weighted_mean([twins[i].train(0, start, None).state for i in (0, 2)], [3, 4])
    assert state_digest(adapter(tmp_path, 0)) == state_digest(root)
    after = weighted_mean([t.train(1, root, root).state for t in twins], [3, 1, 4])
    assert state_digest(adapter(tmp_path, 1)) == state_digest(after)


def test_an_offline_site_is_mapped_by_message_id(tmp_path: Path) -> None:
    grid_options: dict[str, Any] = {"offline": set()}
    sites = make_sites(tmp_path, [3, 1, 4])
    sites[2].on_evaluate = lambda round_: grid_options["offline"].add(1)
    run(tmp_path, sites, settings(tmp_path, rounds=1, quorum=2), **grid_options)
    assert records(tmp_path)[1]["refused"]["training"] == {
        "site-b": "the site's SuperNode is offline"
    }


# A6 and privacy: what a failing site sends


def test_a_failing_site_is_named_with_its_coded_reason(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])

    def fail(round_: int) -> None:
        raise DataError("pairs.jsonl is stale", file="/secret/place/pairs.jsonl", line=3)

    sites[1].on_train = fail
    run(tmp_path, sites, settings(tmp_path, rounds=0, quorum=1))
    reason = records(tmp_path)[0]["refused"]["training"]["site-b"]
    assert reason == "[FP200] pairs.jsonl:3: pairs.jsonl is stale."


def test_the_text_of_an_exception_never_leaves_a_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = make_sites(tmp_path, [3, 1])

    def fail(round_: int) -> None:
        raise ValueError("FINDINGS: the patient's right lung")

    sites[1].on_train = fail
    grid = run(tmp_path, sites, settings(tmp_path, rounds=0, quorum=1))
    assert "failed with ValueError" in records(tmp_path)[0]["refused"]["training"]["site-b"]
    everything = repr([m.content for m in [*grid.sent, *grid.replies]]) + caplog.text
    for path in (tmp_path / "runs").rglob("*"):
        everything += path.read_bytes().decode("latin-1") if path.is_file() else ""
    assert "FINDINGS" not in everything
    assert "lung" not in everything


def test_a_site_that_fails_its_handshake_ends_the_join_at_once(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])

    def hashes() -> Mapping[str, str]:
        raise DataError("patient in two splits", file="reports.jsonl", line=7)

    sites[1].hashes = hashes  # type: ignore[method-assign]
    with pytest.raises(FedPrefError, match=r"site-b.*reports.jsonl:7: patient in two splits"):
        run(tmp_path, sites, settings(tmp_path, join_deadline=30.0))


def test_when_no_site_can_start_the_run_ends_at_once(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    for site in sites:
        site.hashes = lambda: {}["x"]  # type: ignore[method-assign]
    started = time.monotonic()
    with pytest.raises(
        FedPrefError, match=r"site site-a: .*KeyError[\s\S]*site site-b: .*KeyError"
    ):
        run(tmp_path, sites, settings(tmp_path, join_deadline=30.0))
    assert time.monotonic() - started < 5


def test_sites_with_different_models_are_refused_before_training(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    sites[1].weights = "v" * 64
    with pytest.raises(HandshakeError, match="site site-b, key weights: weights differs"):
        run(tmp_path, sites, settings(tmp_path))
    assert all(kind == "handshake" for site in sites for kind, _ in site.calls)


# The wire


def test_an_adapter_goes_down_once_a_round_and_up_once(tmp_path: Path) -> None:
    grid = run(tmp_path, make_sites(tmp_path, [3, 1]), settings(tmp_path, rounds=2))
    down = [(m.metadata.message_type, len(m.content.array_records)) for m in grid.sent]
    assert (
        down
        == [("query", 0)] * 2
        + [("train", 0)] * 2
        + [("evaluate", 1)] * 2
        + ([("train", 0)] * 2 + [("evaluate", 1)] * 2) * 2
    )
    up = [m for m in grid.replies if m.content.array_records]
    assert {m.metadata.message_type for m in up} == {"train"}
    assert len(up) == 6


def test_an_update_holds_one_flat_adapter_counts_and_hashes(tmp_path: Path) -> None:
    grid = run(tmp_path, make_sites(tmp_path, [3, 1]), settings(tmp_path, rounds=0))
    reply = next(m for m in grid.replies if m.content.array_records)
    ((name, array),) = reply.content[wire.ARRAYS].items()
    assert len(array.data) <= 4 * SPEC.parameter_count + 128
    assert len(name) == 64
    assert dict(reply.content[wire.METRICS]) == {wire.NUM_EXAMPLES: 3}
    assert set(reply.content[wire.CONFIG]) == {
        "status", "site", "federation", "round", "holds", "base-hash", "adapter-hash"
    }  # fmt: skip
    assert all(".lora_" in key for key in SPEC.keys)


def test_bytes_are_counted_both_ways(tmp_path: Path) -> None:
    run(tmp_path, make_sites(tmp_path, [3, 1]), settings(tmp_path, rounds=1))
    size = 2 * 4 * SPEC.parameter_count
    for row in records(tmp_path):
        for way in ("down", "up"):
            assert size < row["bytes"][way] < size + 4000
            assert (
                row["bytes"][way]
                == row["bytes"]["training"][way] + (row["bytes"]["evaluation"][way])
            )


def test_an_adapter_is_laid_out_once_for_all_sites() -> None:
    state = random_state(1)
    outgoing = wire.Outgoing([state], SPEC)
    (first,), (second,) = (outgoing.record(()).values() for _ in range(2))
    assert first.data is second.data
    assert len(outgoing.record({state_digest(state)})) == 0


def test_a_site_that_lost_its_state_gets_it_again(tmp_path: Path) -> None:
    def lose(site: FakeWork) -> Any:
        def on_evaluate(round_: int) -> None:
            import shutil

            if round_ == 1:
                shutil.rmtree(site.state_dir)

        return on_evaluate

    plain, lossy = tmp_path / "plain", tmp_path / "lossy"
    run(plain, make_sites(plain, [3, 1]), settings(plain))
    sites = make_sites(lossy, [3, 1])
    sites[0].on_evaluate = lose(sites[0])
    grid = run(lossy, sites, settings(lossy))
    assert state_digest(adapter(lossy, 2)) == state_digest(adapter(plain, 2))
    again = [m for m in grid.sent if m.metadata.message_type == "train" and m.content.array_records]
    # Both the current adapter and the root were lost.
    assert [len(m.content[wire.ARRAYS]) for m in again] == [2]


def test_a_damaged_adapter_at_a_site_counts_as_lost(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])

    def damage(round_: int) -> None:
        for path in sites[0].state_dir.rglob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")

    sites[0].on_evaluate = damage
    run(tmp_path, sites, settings(tmp_path))
    assert [row["refused"]["training"] for row in records(tmp_path)] == [{}, {}, {}]


def test_a_reply_that_lacks_its_adapter_for_ever_is_refused(tmp_path: Path) -> None:
    def tamper(site: int, reply: Message) -> Message:
        config = reply.content[wire.CONFIG]
        if site == 1 and config[wire.STATUS] == wire.TRAINED:
            config[wire.STATUS] = wire.LACKS
            config[wire.MISSING] = []
        return reply

    sites = make_sites(tmp_path, [3, 1])
    run(tmp_path, sites, settings(tmp_path, rounds=0, quorum=1), tamper=tamper)
    assert "again" in records(tmp_path)[0]["refused"]["training"]["site-b"]


def test_a_site_keeps_the_current_adapter_and_the_root_only(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    run(tmp_path, sites, settings(tmp_path, rounds=3))
    kept = {path.name for path in (sites[0].state_dir / "adapters").iterdir()}
    assert kept == {state_digest(adapter(tmp_path, t)) for t in (0, 3)}


def test_a_node_that_comes_back_under_a_new_id_is_found(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1, 4])
    config = settings(tmp_path, rounds=1, quorum=2)
    grid = make_grid(sites, config)

    def restart(round_: int) -> None:
        context = grid.contexts.pop(102, None)
        if context is not None:
            grid.contexts[104] = context
            grid.offline = {1}

    sites[2].on_evaluate = restart
    run_server(grid, config)
    assert records(tmp_path)[1]["sites"]["site-b"]["pairs"] == 1
    assert grid.sent[-1].metadata.dst_node_id in {101, 103, 104}


def test_quorum_above_the_number_of_sites_is_refused_before_training(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    with pytest.raises(ConfigError, match="quorum = 3 is larger than the number of sites, 2"):
        run(tmp_path, sites, settings(tmp_path, quorum=3))
    assert not any(kind == "train" for kind, _ in sites[0].calls)


def test_what_could_not_be_evaluated_is_told_before_training(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])

    def wrong() -> None:
        raise DataError("report 3 of 43 holds a special token")

    sites[1].on_check = wrong
    with pytest.raises(FedPrefErrors, match="report 3 of 43 holds a special token"):
        run(tmp_path, sites, settings(tmp_path, min_sites=2))
    assert not any(kind == "train" for site in sites for kind, _ in site.calls)


def test_the_states_of_the_fake_are_what_the_wire_carries() -> None:
    assert pack(random_state(1), SPEC).shape == (SPEC.parameter_count,)
