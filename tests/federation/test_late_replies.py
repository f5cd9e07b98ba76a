"""What comes after its deadline, or comes back, never enters a later round."""

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, run_server
from flwr.app import ConfigRecord, Message, RecordDict
from local_grid import LocalGrid

from fedpref.adapter_state import load_adapter, state_digest
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation import wire
from fedpref.federation.exchange import Traffic, exchange


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 1, "join-deadline": 2.0}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def run(folder: Path, sites: list[FakeWork], config: dict[str, Any], **options: Any) -> LocalGrid:
    grid = make_grid(sites, config, **options)
    run_server(grid, config)
    return grid


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def adapters(folder: Path) -> list[str]:
    paths = [folder / "runs" / "r" / "adapters" / f"round-{t}" for t in range(2)]
    return [state_digest(load_adapter(path, SPEC)) for path in paths]


# One exchange after another


def numbered(number: int) -> Message:
    content = RecordDict({wire.CONFIG: ConfigRecord({"number": number})})
    return Message(content, dst_node_id=101, message_type="query")


def test_an_exchange_takes_replies_to_its_own_messages_only() -> None:
    def echo(message: Message, _: object) -> Message:
        return Message(copy.deepcopy(message.content), reply_to=message)

    def delay(site: int, message: Message) -> float:
        return 0.15 if message.content[wire.CONFIG]["number"] == 1 else 0.3

    grid = LocalGrid(echo, {}, 1, delay=delay)
    seen: list[int] = []

    def on_reply(site: str, reply: Message) -> None:
        seen.append(int(reply.content[wire.CONFIG]["number"]))

    def one(number: int, deadline: float) -> tuple[str, ...]:
        request = {"site-a": numbered(number)}
        return exchange(grid, request, on_reply, deadline=deadline, traffic=Traffic(), poll=0.01)

    assert one(1, 0.05) == ("site-a",)
    # The first reply lies ready while the second is waited for.
    assert one(2, 2.0) == ()
    assert seen == [2]
    assert len(grid._ready) == 1


def test_a_late_reply_is_not_even_counted_as_traffic() -> None:
    grid = LocalGrid(lambda m, _: Message(RecordDict(), reply_to=m), {}, 1, delay=lambda *_: 0.2)
    traffic = Traffic()
    exchange(grid, {"a": numbered(1)}, lambda *_: None, deadline=0.05, traffic=traffic, poll=0.01)
    time.sleep(0.2)
    assert traffic.up == 0


# Whole runs


def only_first(kind: str, seconds: float) -> Callable[[int, Message], float]:
    """A delay of the first message of this kind to site-b."""
    slow = {"n": 0}

    def delay(site: int, message: Message) -> float:
        if site != 1 or message.metadata.message_type != kind:
            return 0.0
        slow["n"] += 1
        return seconds if slow["n"] == 1 else 0.0

    return delay


def test_late_counts_are_no_data_and_are_not_taken_for_the_next_rounds(tmp_path: Path) -> None:
    on_time, late = tmp_path / "on-time", tmp_path / "late"
    run(on_time, make_sites(on_time, [3, 1, 4]), settings(on_time))
    # site-b's counts of round 0 lie ready before round 1 is evaluated: site-a trains too long.
    sites = make_sites(late, [3, 1, 4])
    sites[0].on_train = lambda round_: time.sleep(0.8 * round_)
    config = settings(late, quorum=2, round_deadline=0.3)
    run(late, sites, config, delay=only_first("evaluate", 0.8))

    first, second = records(late)
    assert "no reply within round-deadline" in first["refused"]["evaluation"]["site-b"]
    assert first["sites"]["site-b"]["counts"] is None
    assert adapters(late) == adapters(on_time)
    assert second["sites"] == _with_times(records(on_time)[1]["sites"], second["sites"])
    assert EvaluationCounts.from_dict(second["sites"]["site-b"]["counts"]).reports == 40


def _with_times(sites: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    return {site: {**entry, "seconds": times[site]["seconds"]} for site, entry in sites.items()}


@pytest.mark.parametrize("forged", [False, True])
def test_a_reply_that_comes_back_a_round_later_is_refused(tmp_path: Path, forged: bool) -> None:
    old: list[RecordDict] = []

    def replay(site: int, reply: Message) -> Message:
        """From round 1 on, site-b sends the update of round 0 again, if forged as a new one."""
        if site == 1 and wire.ARRAYS in reply.content:
            old.append(copy.deepcopy(reply.content))
            round_ = reply.content[wire.CONFIG][wire.ROUND]
            reply.content = copy.deepcopy(old[0])
            if forged:
                reply.content[wire.CONFIG][wire.ROUND] = round_
        return reply

    replayed, without = tmp_path / "replayed", tmp_path / "without"
    run(replayed, make_sites(replayed, [3, 1, 4]), settings(replayed, quorum=2), tamper=replay)
    reason = records(replayed)[1]["refused"]["training"]
    wrong = "the update builds on another adapter" if forged else "the reply is for another round"
    assert reason == {"site-b": wrong}

    # As if site-b had not answered at all.
    run(
        without,
        make_sites(without, [3, 1, 4]),
        settings(without, quorum=2),
        tamper=lambda site, reply: _unreadable(reply) if site == 1 else reply,
    )
    assert adapters(replayed) == adapters(without)


def _unreadable(reply: Message) -> Message:
    if wire.ARRAYS in reply.content and reply.content[wire.CONFIG][wire.ROUND] == 1:
        reply.content[wire.CONFIG][wire.ROUND] = -1
    return reply


def test_a_round_without_training_still_tells_its_replies_from_the_next_rounds(
    tmp_path: Path,
) -> None:
    # The adapter does not change, so that its hash alone would not tell.
    old: list[RecordDict] = []

    def replay(site: int, reply: Message) -> Message:
        config = reply.content[wire.CONFIG]
        if site == 1 and config[wire.STATUS] == wire.NOTHING_TRAINED:
            old.append(copy.deepcopy(reply.content))
            reply.content = copy.deepcopy(old[0])
        return reply

    run(tmp_path, make_sites(tmp_path, [0, 0]), settings(tmp_path, quorum=1), tamper=replay)
    first, second = records(tmp_path)
    assert first["adapter"] == second["adapter"]
    assert first["refused"]["training"] == {}
    assert second["refused"]["training"] == {"site-b": "the reply is for another round"}
