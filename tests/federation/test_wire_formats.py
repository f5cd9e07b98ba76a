"""Whole federations with each wire format, against fake sites in this process."""

import json
import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, random_state, run_server, trained_of
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedpref.adapter_state import (
    AdapterSpec,
    AdapterState,
    initial_state,
    load_adapter,
    pack,
    state_digest,
)
from fedpref.errors import AdapterError
from fedpref.federation import wire
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.difference import apply_difference, encode_difference, split_name
from fedpref.federation.quantise import Format, encoded_size

LEAN: tuple[Format, ...] = ("bfloat16", "int8", "int4")
SEED = 20260713

# Large enough that a message is mostly adapter, with a last block that is not full.
WIDE = AdapterSpec(
    rank=4,
    alpha=8.0,
    rslora=False,
    targets=SPEC.targets,
    keys=SPEC.keys,
    shapes=((4, 601), (1003, 4)),
)


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 2, "join-deadline": 2.0}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def adapter(folder: Path, round_: int, spec: AdapterSpec = SPEC) -> AdapterState:
    return load_adapter(folder / "runs" / "r" / "adapters" / f"round-{round_}", spec)


def run(folder: Path, sites: list[FakeWork], config: Mapping[str, Any], **options: Any) -> Any:
    """Run the server; `grid.sent` and `grid.replies` hold what travelled."""
    grid = make_grid(sites, config, **options)
    real, replies = grid.client_app, []

    def client_app(message: Message, context: Any) -> Message:
        reply = real(message, context)
        # The server, which gets this very object, replaces differences by whole adapters in it.
        replies.append(deepcopy(reply))
        return reply

    grid.client_app = client_app
    run_server(grid, config)
    grid.replies = replies
    return grid


def arrays_of(messages: list[Message], kind: str = "") -> list[dict[str, Array]]:
    return [
        dict(m.content[wire.ARRAYS])
        for m in messages
        if wire.ARRAYS in m.content and kind in ("", m.metadata.message_type)
    ]


def by_hand(folder: Path, counts: list[int], rounds: int, format_: Format) -> list[AdapterState]:
    """The method with every transfer rounded as the wire rounds it."""
    sites = make_sites(folder, counts)
    current, root, states = initial_state(SPEC, SEED), None, []
    for t in range(rounds + 1):
        updates = [s.train(t, current, root).state for s in sites]  # type: ignore[union-attr]
        sent = [encode_difference(current, update, SPEC, format_)[1] for update in updates]
        combined = weighted_mean(sent, counts)
        current = encode_difference(current, combined, SPEC, format_)[1]
        root = root or current
        states.append(current)
    return states


# The differences themselves


@pytest.mark.parametrize("format_", LEAN)
def test_both_ends_restore_equal_bits(format_: Format) -> None:
    before, after = random_state(1, WIDE), random_state(2, WIDE)
    difference, given = encode_difference(before, after, WIDE, format_)
    assert difference.before == state_digest(before)
    assert difference.after == state_digest(given)
    restored = apply_difference(before, difference.payload, WIDE, format_)
    assert state_digest(restored) == difference.after
    assert state_digest(given) != state_digest(after)


@pytest.mark.parametrize(("format_", "limit"), [("bfloat16", 2e-3), ("int8", 1e-2), ("int4", 0.15)])
def test_the_error_is_one_of_the_difference_not_of_the_adapter(
    format_: Format, limit: float
) -> None:
    before, noise = random_state(1, WIDE), random_state(2, WIDE)
    step = np.float32(1e-3)
    after = {key: before[key] + step * noise[key] for key in before}
    _, given = encode_difference(before, after, WIDE, format_)
    error = sum(float(((given[k] - after[k]) ** 2).sum()) for k in after)
    moved = sum(float(((before[k] - after[k]) ** 2).sum()) for k in after)
    assert 0 < error**0.5 < limit * moved**0.5


@pytest.mark.parametrize("format_", LEAN)
def test_an_unchanged_tensor_stays_exact(format_: Format) -> None:
    # lora_A fills whole blocks here, so that what moves beside it does not touch it.
    spec = AdapterSpec(4, 8.0, False, SPEC.targets, SPEC.keys, ((4, 64), (96, 4)))
    before, after = random_state(1, spec), random_state(2, spec)
    after[spec.keys[0]] = before[spec.keys[0]]
    _, given = encode_difference(before, after, spec, format_)
    assert np.array_equal(given[spec.keys[0]], before[spec.keys[0]])


@pytest.mark.parametrize("format_", ["float32", *LEAN])
def test_where_no_lora_a_has_moved_only_lora_b_travels(format_: Format) -> None:
    (a, b), b_size = WIDE.keys, 4 * 1003
    before = random_state(1, WIDE)
    after = before | {b: random_state(2, WIDE)[b]}
    difference, given = encode_difference(before, after, WIDE, format_)
    assert difference is not None
    assert difference.name == f"{state_digest(given)}:{state_digest(before)}:B"
    assert split_name(difference.name) == (state_digest(given), state_digest(before), True)
    assert difference.payload.size == encoded_size(b_size, format_)
    assert np.array_equal(given[a], before[a])
    assert np.array_equal(given[b], after[b]) == (format_ == "float32")
    message = message_with(difference.name, difference.payload)
    read = wire.read_states(message, WIDE, format_, {difference.before: before}.get)
    assert list(read.states) == [state_digest(given)]
    wire.make_whole(message, difference.before, before, WIDE, format_)
    ((name, array),) = message[wire.ARRAYS].items()
    assert name == difference.after
    assert np.array_equal(array.numpy(), pack(given, WIDE))


def test_float32_has_no_difference_where_lora_a_moves() -> None:
    before, after = random_state(1), random_state(2)
    difference, given = encode_difference(before, after, SPEC, "float32")
    assert difference is None
    assert given is after


def test_a_difference_of_a_broken_adapter_is_refused() -> None:
    before, after = random_state(1), random_state(2)
    after[SPEC.keys[1]][0, 0] = np.nan
    with pytest.raises(AdapterError, match="NaN or infinity"):
        encode_difference(before, after, SPEC, "int8")


# What travels


def test_a_difference_goes_only_to_who_holds_its_start() -> None:
    before, after = random_state(1), random_state(2)
    difference, given = encode_difference(before, after, SPEC, "int8")
    outgoing = wire.Outgoing([given], SPEC, difference)
    whole = state_digest(given)
    assert list(outgoing.record(())) == [whole]
    assert list(outgoing.record({difference.before})) == [f"{whole}:{difference.before}"]
    assert list(outgoing.record({whole, difference.before})) == []
    first, second = (outgoing.record({difference.before})[difference.name] for _ in range(2))
    assert first.data is second.data


def message_with(name: str, flat: np.ndarray) -> RecordDict:
    return RecordDict({wire.ARRAYS: ArrayRecord({name: Array(flat)})})


def test_a_difference_that_leads_elsewhere_is_unusable_and_not_kept() -> None:
    before = random_state(1)
    difference, given = encode_difference(before, random_state(2), SPEC, "int8")
    held = {difference.before: before}
    good = wire.read_states(
        message_with(difference.name, difference.payload), SPEC, "int8", held.get
    )
    assert list(good.states) == [state_digest(given)]
    assert good.unusable == []
    for broken, there in ((difference.payload ^ np.uint8(1), held), (difference.payload, {})):
        bad = wire.read_states(message_with(difference.name, broken), SPEC, "int8", there.get)
        assert bad.states == {}
        assert bad.unusable == [difference.before]


def test_a_whole_adapter_under_a_wrong_name_is_refused() -> None:
    flat = np.zeros(SPEC.parameter_count, dtype=np.float32)
    with pytest.raises(AdapterError, match="announced was 000000000000"):
        wire.read_states(message_with("0" * 64, flat), SPEC)


@pytest.mark.parametrize("format_", LEAN)
def test_every_transfer_of_a_run_is_a_difference(tmp_path: Path, format_: Format) -> None:
    sites = make_sites(tmp_path, [3, 1])
    grid = run(tmp_path, sites, settings(tmp_path, wire=format_, rounds=3))
    down, up = arrays_of(grid.sent), arrays_of(grid.replies)
    assert len(down) == len(up) == 2 * 4
    size = encoded_size(SPEC.parameter_count, format_)
    for arrays in [*down, *up]:
        ((name, array),) = arrays.items()
        assert ":" in name
        assert array.numpy().dtype == np.uint8
        assert array.numpy().shape == (size,)


def test_float32_sends_whole_adapters_and_rounds_nothing(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    grid = run(tmp_path, sites, settings(tmp_path, wire="float32"))
    for arrays in [*arrays_of(grid.sent), *arrays_of(grid.replies)]:
        ((name, array),) = arrays.items()
        assert len(name) == 64
        assert array.numpy().dtype == np.float32
    twins = make_sites(tmp_path / "x", [3, 1])
    start = initial_state(SPEC, SEED)
    mean = weighted_mean([t.train(0, start, None).state for t in twins], [3, 1])  # type: ignore[index]
    assert state_digest(adapter(tmp_path, 0)) == state_digest(mean)


@pytest.mark.parametrize(("format_", "share"), [("bfloat16", 0.51), ("int8", 0.27), ("int4", 0.15)])
def test_bytes_are_those_of_the_messages_and_lean(
    tmp_path: Path, format_: Format, share: float
) -> None:
    size = 4 * WIDE.parameter_count
    for name in ("float32", format_):
        folder = tmp_path / name
        sites = make_sites(folder, [3, 1], spec=WIDE)
        grid = run(folder, sites, settings(folder, wire=name))
        sent = [m for m in grid.sent if m.metadata.message_type != "query"]
        replies = [m for m in grid.replies if m.metadata.message_type != "query"]
        for way, messages in (("down", sent), ("up", replies)):
            assert sum(row["bytes"][way] for row in records(folder)) == wire.content_bytes(messages)
    for messages in (sent, replies):
        for arrays in arrays_of(messages):
            # A NumPy header of 128 bytes is part of it.
            assert sum(len(array.data) for array in arrays.values()) <= share * size


# One adapter of record


@pytest.mark.parametrize("format_", LEAN)
def test_the_run_is_the_method_with_rounded_transfers(tmp_path: Path, format_: Format) -> None:
    run(tmp_path, make_sites(tmp_path, [3, 1, 4]), settings(tmp_path, wire=format_))
    states = by_hand(tmp_path / "x", [3, 1, 4], 2, format_)
    assert [row["adapter"] for row in records(tmp_path)] == [state_digest(s) for s in states]
    assert {row["root"] for row in records(tmp_path)} == {state_digest(states[0])}
    for t, state in enumerate(states):
        assert state_digest(adapter(tmp_path, t)) == state_digest(state)


@pytest.mark.parametrize("format_", LEAN)
def test_every_site_holds_the_adapter_that_the_server_saved(
    tmp_path: Path, format_: Format
) -> None:
    sites = make_sites(tmp_path, [3, 1, 0])
    trained: list[str] = []
    for site in sites:

        def train(round_: int, *rest: Any, real: Any = site.train) -> Any:
            trained.append(state_digest(rest[0]))
            return real(round_, *rest)

        site.train = train  # type: ignore[method-assign]
    run(tmp_path, sites, settings(tmp_path, wire=format_, rounds=2))
    served = [state_digest(adapter(tmp_path, t)) for t in range(3)]
    assert trained == [state_digest(initial_state(SPEC, SEED))] * 3 + served[:1] * 3 + (
        served[1:2] * 3
    )
    for site in sites:
        for name in (served[0], served[2]):
            held = load_adapter(site.state_dir / "adapters" / name, SPEC)
            assert state_digest(held) == name


def test_int8_stays_near_float32(tmp_path: Path) -> None:
    for name in ("float32", "int8"):
        folder = tmp_path / name
        run(folder, make_sites(folder, [3, 1, 4]), settings(folder, wire=name))
    exact, lean = (adapter(tmp_path / name, 2) for name in ("float32", "int8"))
    for key in SPEC.keys:
        assert np.abs(lean[key] - exact[key]).max() < 0.05 * np.abs(exact[key]).max()


def test_arrival_order_does_not_change_a_bit(tmp_path: Path) -> None:
    for name, delays in (("x", [0.0, 0.1]), ("y", [0.1, 0.0])):
        folder = tmp_path / name
        run(
            folder,
            make_sites(folder, [3, 1]),
            settings(folder, wire="int4", rounds=0),
            delay=lambda site, _, delays=delays: delays[site],
        )
    assert state_digest(adapter(tmp_path / "x", 0)) == state_digest(adapter(tmp_path / "y", 0))


def test_a_round_in_which_no_site_trained_sends_nothing(tmp_path: Path) -> None:
    grid = run(tmp_path, make_sites(tmp_path, [0, 0]), settings(tmp_path, wire="int4"))
    assert arrays_of(grid.sent) == []
    assert {row["adapter"] for row in records(tmp_path)} == {
        state_digest(initial_state(SPEC, SEED))
    }


def test_sites_that_train_alone_use_the_format_too(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    grid = run(tmp_path, sites, settings(tmp_path, wire="int8", strategy="local"))
    for arrays in [*arrays_of(grid.sent), *arrays_of(grid.replies)]:
        assert all(array.numpy().dtype == np.uint8 for array in arrays.values())
    for site in sites:
        own = tmp_path / "runs" / "r" / "sites" / site.name / "adapters" / "round-2"
        digest = state_digest(load_adapter(own, SPEC))
        assert (site.state_dir / "adapters" / digest).is_dir()


# What is lost comes back whole


@pytest.mark.parametrize("format_", ["int8", "int4"])
@pytest.mark.parametrize(("kind", "lost_in"), [("train", 1), ("evaluate", 0), ("evaluate", 1)])
def test_a_site_that_lost_its_state_recovers(
    tmp_path: Path, format_: Format, kind: str, lost_in: int
) -> None:
    plain, lossy = tmp_path / "plain", tmp_path / "lossy"
    run(plain, make_sites(plain, [3, 1]), settings(plain, wire=format_))
    sites = make_sites(lossy, [3, 1])

    def lose(round_: int) -> None:
        if round_ == lost_in:
            shutil.rmtree(sites[0].state_dir, ignore_errors=True)

    setattr(sites[0], f"on_{kind}", lose)
    grid = run(lossy, sites, settings(lossy, wire=format_))
    for t in range(3):
        assert state_digest(adapter(lossy, t)) == state_digest(adapter(plain, t))
    assert [row["refused"] for row in records(lossy)] == [{"training": {}, "evaluation": {}}] * 3
    whole = [name for arrays in arrays_of(grid.sent) for name in arrays if ":" not in name]
    # The initial adapter is never lost, so that the first difference can be followed once more.
    assert bool(whole) == ((kind, lost_in) != ("evaluate", 0))


def test_a_difference_damaged_on_the_way_is_followed_by_the_whole_adapter(
    tmp_path: Path,
) -> None:
    sites = make_sites(tmp_path, [3, 1])
    config = settings(tmp_path, wire="int8", rounds=1)
    grid = make_grid(sites, config)
    real, damaged = grid.client_app, []

    def client_app(message: Message, context: Any) -> Message:
        arrays = message.content.array_records.get(wire.ARRAYS, {})
        for name in [name for name in arrays if ":" in name]:
            if context.node_config["partition-id"] == 0:
                arrays[name] = Array(arrays[name].numpy() ^ np.uint8(1))
                damaged.append(name)
        return real(message, context)

    grid.client_app = client_app
    run_server(grid, config)
    assert len(damaged) == 2
    whole = [name for arrays in arrays_of(grid.sent) for name in arrays if ":" not in name]
    assert set(whole) >= {state_digest(adapter(tmp_path, t)) for t in range(2)}
    states = by_hand(tmp_path / "x", [3, 1], 1, "int8")
    assert [row["adapter"] for row in records(tmp_path)] == [state_digest(s) for s in states]


def test_a_site_that_missed_a_round_gets_the_whole_adapter(tmp_path: Path) -> None:
    offline: set[int] = set()
    sites = make_sites(tmp_path, [3, 1, 4])
    # Site b is away from the evaluation of round 0 until that of round 1.
    sites[0].on_evaluate = lambda round_: offline.add(1) if round_ == 0 else offline.clear()
    config = settings(tmp_path, wire="int8", rounds=2, quorum=2)
    grid = run(tmp_path, sites, config, offline=offline)
    assert records(tmp_path)[2]["refused"] == {"training": {}, "evaluation": {}}
    whole = [
        (m.metadata.dst_node_id, m.metadata.message_type, m.metadata.group_id)
        for m in grid.sent
        if any(":" not in name for name in m.content.array_records.get(wire.ARRAYS, {}))
    ]
    assert {node for node, _, _ in whole} == {102}


# Resuming


class Killed(BaseException):
    """Ends the server at once, as a signal would."""


def killed_at(kind: str, nth: int) -> Any:
    seen = {"n": 0}

    def tamper(site: int, reply: Message) -> Message:
        seen["n"] += reply.metadata.message_type == kind
        if reply.metadata.message_type == kind and seen["n"] == nth:
            raise Killed
        return reply

    return tamper


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("kind", "nth"), [("train", 2), ("evaluate", 2), ("train", 4), ("evaluate", 4)]
)
def test_a_killed_run_resumes_to_the_same_result(
    tmp_path: Path, lost: bool, kind: str, nth: int
) -> None:
    format_ = "int4"
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, make_sites(whole, [3, 1]), settings(whole, wire=format_))
    config = settings(cut, wire=format_)
    sites = make_sites(cut, [3, 1])
    with pytest.raises(Killed):
        run(cut, sites, config, tamper=killed_at(kind, nth))
    if lost:
        for site in sites:
            shutil.rmtree(site.state_dir, ignore_errors=True)
    config = settings(cut, wire=format_, resume=str(cut / "runs" / "r"))
    run(cut, sites, config)
    for key in ("adapter", "root", "client_mean", "refused"):
        assert [row[key] for row in records(cut)] == [row[key] for row in records(whole)]


def test_another_format_is_another_run(tmp_path: Path) -> None:
    config = settings(tmp_path, wire="int8")
    with pytest.raises(Killed):
        run(tmp_path, make_sites(tmp_path, [3, 1]), config, tamper=killed_at("train", 3))
    config = settings(tmp_path, wire="int4", resume=str(tmp_path / "runs" / "r"))
    with pytest.raises(Exception, match="key wire: was 'int8' when the run started"):
        run(tmp_path, make_sites(tmp_path, [3, 1]), config)


# The same guards


def payload_of(change: Any) -> Any:
    def apply(reply: Message) -> None:
        ((name, array),) = reply.content[wire.ARRAYS].items()
        reply.content[wire.ARRAYS] = ArrayRecord({name: Array(change(array.numpy().copy()))})

    return apply


def other_start(reply: Message) -> None:
    ((name, array),) = reply.content[wire.ARRAYS].items()
    reply.content[wire.ARRAYS] = ArrayRecord({name.split(":")[0] + ":" + "0" * 64: array})


def not_a_number(payload: np.ndarray) -> np.ndarray:
    payload[-2:] = [0xC0, 0x7F]
    return payload


def two_arrays(reply: Message) -> None:
    reply.content[wire.ARRAYS]["more"] = Array(np.zeros(3, dtype=np.float32))


def no_array(reply: Message) -> None:
    ((name, _),) = reply.content[wire.ARRAYS].items()
    broken = Array("uint8", (3,), "numpy.ndarray", b"no array at all")
    reply.content[wire.ARRAYS] = ArrayRecord({name: broken})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (payload_of(lambda p: p ^ np.uint8(1)), "does not match its hash"),
        (payload_of(not_a_number), "NaN or infinity in 2 tensors"),
        (payload_of(lambda p: p[:-1]), "encoded adapter has shape (21,)"),
        (payload_of(lambda p: p.astype(np.float32)), "dtype float32, expected (22,) uint8"),
        (other_start, "a difference to another adapter"),
        (two_arrays, "2 arrays, not 1"),
        (no_array, "cannot be decoded"),
    ],
)
def test_a_bad_difference_is_left_out_and_named(tmp_path: Path, change: Any, reason: str) -> None:
    def tamper(number: int, reply: Message) -> Message:
        if number == 1 and wire.ARRAYS in reply.content:
            change(reply)
        return reply

    config = settings(tmp_path, wire="int8", rounds=0, quorum=2)
    run(tmp_path, make_sites(tmp_path, [3, 1, 4]), config, tamper=tamper)
    refused = records(tmp_path)[0]["refused"]["training"]
    assert list(refused) == ["site-b"]
    assert reason in refused["site-b"]


def test_a_site_whose_training_broke_says_so(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1])
    broken = random_state(1)
    broken[SPEC.keys[0]][0, 0] = np.inf
    sites[1].train = lambda *asked: trained_of(broken, 1)  # type: ignore[method-assign]
    run(tmp_path, sites, settings(tmp_path, wire="int4", rounds=0, quorum=1))
    assert "NaN or infinity" in records(tmp_path)[0]["refused"]["training"]["site-b"]
