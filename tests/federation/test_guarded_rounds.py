"""Rounds in which sites are drawn, and in which updates are left out for what the others did."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, run_server
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from fedpref.adapter_state import initial_state, load_adapter, pack, state_digest, unpack
from fedpref.errors import RoundError
from fedpref.federation import wire
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.participation import sample_sites

SEED = 20260713
NAMES = ["site-a", "site-b", "site-c", "site-d"]
Change = Callable[[Message], None]


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 0, "join-deadline": 2.0}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def digest_of(folder: Path, round_: int) -> str:
    return state_digest(load_adapter(folder / "runs" / "r" / "adapters" / f"round-{round_}", SPEC))


def run(folder: Path, sites: list[FakeWork], config: Mapping[str, Any], **options: Any) -> None:
    run_server(make_grid(sites, config, **options), config)


def tampered(site: int, kind: str, change: Change) -> Callable[[int, Message], Message]:
    def tamper(number: int, reply: Message) -> Message:
        if number == site and reply.metadata.message_type == kind:
            change(reply)
        return reply

    return tamper


def scaled(factor: float) -> Change:
    """Move an update `factor` times as far from the initial adapter, under an honest hash."""

    def change(reply: Message) -> None:
        start = pack(initial_state(SPEC, SEED), SPEC)
        ((_, array),) = reply.content[wire.ARRAYS].items()
        flat = (start + np.float32(factor) * (array.numpy() - start)).astype(np.float32)
        name = state_digest(unpack(flat, SPEC))
        reply.content[wire.CONFIG][wire.ADAPTER_HASH] = name
        reply.content[wire.ARRAYS] = ArrayRecord({name: Array(flat)})

    return change


def of(folder: Path, counts: list[int], *places: int) -> str:
    """The hash of the round-0 average of these sites, by hand."""
    twins = make_sites(folder / "hand", counts)
    start = initial_state(SPEC, SEED)
    states = [twins[i].train(0, start, None).state for i in places]  # type: ignore[index]
    return state_digest(weighted_mean(states, [counts[i] for i in places]))


# Too far


def test_an_update_that_is_far_off_is_left_out_by_name(tmp_path: Path) -> None:
    counts = [3, 1, 4, 2]
    config = settings(tmp_path, quorum=3)
    run(tmp_path, make_sites(tmp_path, counts), config, tamper=tampered(1, "train", scaled(1000)))
    row = records(tmp_path)[0]
    assert list(row["refused"]["training"]) == ["site-b"]
    assert "more than guards.norm-multiple = 10" in row["refused"]["training"]["site-b"]
    assert digest_of(tmp_path, 0) == of(tmp_path, counts, 0, 2, 3)
    assert row["sites"]["site-b"]["weight"] == 0.0
    assert row["sites"]["site-b"]["norm"] > 500 * row["sites"]["site-a"]["norm"] > 0


def test_the_comparison_can_be_turned_off(tmp_path: Path) -> None:
    config = settings(tmp_path, quorum=3) | {"guards.norm-multiple": 0.0}
    sites = make_sites(tmp_path, [3, 1, 4, 2])
    run(tmp_path, sites, config, tamper=tampered(1, "train", scaled(1000)))
    assert records(tmp_path)[0]["refused"]["training"] == {}


def test_a_quorum_counts_what_is_left(tmp_path: Path) -> None:
    with pytest.raises(RoundError, match=r"3 of 4 sites .* quorum is 4.*site-b: the update moved"):
        run(
            tmp_path,
            make_sites(tmp_path, [3, 1, 4, 2]),
            settings(tmp_path),
            tamper=tampered(1, "train", scaled(1000)),
        )


# What contradicts the handshake


def _count(value: int) -> Change:
    def change(reply: Message) -> None:
        reply.content[wire.METRICS] = MetricRecord({wire.NUM_EXAMPLES: value})

    return change


@pytest.mark.parametrize("on_too_long", ["error", "drop"])
def test_fewer_pairs_than_stated_are_refused_however_long_pairs_are_treated(
    tmp_path: Path, on_too_long: str
) -> None:
    config = settings(tmp_path, quorum=2) | {"training.on-too-long": on_too_long}
    sites = make_sites(tmp_path, [3, 2, 4])
    run(tmp_path, sites, config, tamper=tampered(1, "train", _count(1)))
    assert records(tmp_path)[0]["refused"]["training"] == {
        "site-b": "1 pairs were trained, 2 were stated in the handshake"
    }


def test_nothing_trained_by_a_site_with_pairs_is_refused(tmp_path: Path) -> None:
    def change(reply: Message) -> None:
        reply.content[wire.CONFIG][wire.STATUS] = wire.NOTHING_TRAINED

    sites = make_sites(tmp_path, [3, 2, 4])
    run(tmp_path, sites, settings(tmp_path, quorum=2), tamper=tampered(1, "train", change))
    assert records(tmp_path)[0]["refused"]["training"] == {
        "site-b": "no pair was trained, 2 were stated in the handshake"
    }


def test_a_reply_that_is_refused_for_what_it_holds_is_not_averaged(tmp_path: Path) -> None:
    def change(reply: Message) -> None:
        reply.content[wire.CONFIG][wire.HOLDS] = [1, 2]

    counts = [3, 2, 4]
    sites = make_sites(tmp_path, counts)
    run(tmp_path, sites, settings(tmp_path, quorum=2), tamper=tampered(1, "train", change))
    assert list(records(tmp_path)[0]["refused"]["training"]) == ["site-b"]
    assert digest_of(tmp_path, 0) == of(tmp_path, counts, 0, 2)


@pytest.mark.parametrize("name", ["plain", "difference"])
def test_hostile_bytes_end_no_run(tmp_path: Path, name: str) -> None:
    line = b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,)}\n"
    data = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line

    def change(reply: Message) -> None:
        ((key, _),) = reply.content[wire.ARRAYS].items()
        reply.content[wire.ARRAYS] = ArrayRecord({key: Array("f", (1,), "numpy.ndarray", data)})

    config = settings(tmp_path, quorum=2, wire="float32" if name == "plain" else "int8")
    sites = make_sites(tmp_path, [3, 2, 4])
    run(tmp_path, sites, config, tamper=tampered(1, "train", change))
    assert "decoded" in records(tmp_path)[0]["refused"]["training"]["site-b"]


# Metrics that nobody reads


def test_extra_metrics_are_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def tamper(site: int, reply: Message) -> Message:
        if site == 1 and wire.METRICS in reply.content:
            reply.content[wire.METRICS]["train-loss"] = 0.5
        return reply

    plain, extra = tmp_path / "plain", tmp_path / "extra"
    run(plain, make_sites(plain, [3, 2]), settings(plain, rounds=1))
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run(extra, make_sites(extra, [3, 2]), settings(extra, rounds=1), tamper=tamper)
    assert caplog.text.count("site-b sends 1 metrics that are not used (train-loss)") == 1
    for t in range(2):
        assert digest_of(extra, t) == digest_of(plain, t)
        assert records(extra)[t]["refused"] == {"training": {}, "evaluation": {}}
        assert records(extra)[t]["client_mean"] == records(plain)[t]["client_mean"]


# Participation


def test_a_fraction_trains_and_everyone_evaluates(tmp_path: Path) -> None:
    counts = [3, 1, 4, 2]
    sites = make_sites(tmp_path, counts)
    run(tmp_path, sites, settings(tmp_path, rounds=3, fraction=0.5))
    for t, row in enumerate(records(tmp_path)):
        drawn = sample_sites(NAMES, fraction=0.5, seed=SEED, round_=t)
        assert len(drawn) == 2
        assert [s for s, entry in row["sites"].items() if entry["asked"]] == list(drawn)
        assert [s.name for s in sites if ("train", t) in s.calls] == list(drawn)
        assert all(("evaluate", t) in site.calls for site in sites)
        assert row["refused"] == {"training": {}, "evaluation": {}}
        weights = {s: entry["weight"] for s, entry in row["sites"].items()}
        assert sum(weights.values()) == pytest.approx(1.0)
        assert {s for s, weight in weights.items() if weight} == set(drawn)


def test_a_draw_does_not_depend_on_who_answers_first(tmp_path: Path) -> None:
    for name, delays in (("x", [0.0, 0.1, 0.2, 0.1]), ("y", [0.2, 0.1, 0.0, 0.0])):
        folder = tmp_path / name
        run(
            folder,
            make_sites(folder, [3, 1, 4, 2]),
            settings(folder, rounds=1, fraction=0.5),
            delay=lambda site, _, delays=delays: delays[site],
        )
    assert [digest_of(tmp_path / "x", t) for t in range(2)] == [
        digest_of(tmp_path / "y", t) for t in range(2)
    ]


def test_a_quorum_is_always_asked(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 1, 4, 2])
    run(tmp_path, sites, settings(tmp_path, fraction=0.25, quorum=3))
    assert sum(entry["asked"] for entry in records(tmp_path)[0]["sites"].values()) == 3


def test_without_a_quorum_all_that_are_asked_must_answer(tmp_path: Path) -> None:
    drawn = sample_sites(NAMES, fraction=0.5, seed=SEED, round_=0)
    with pytest.raises(RoundError, match=r"1 of 2 sites answered well, the quorum is 2"):
        run(
            tmp_path,
            make_sites(tmp_path, [3, 1, 4, 2]),
            settings(tmp_path, fraction=0.5),
            tamper=tampered(NAMES.index(drawn[0]), "train", _count(99)),
        )
