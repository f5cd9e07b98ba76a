"""The Local arm: each site by itself is exactly a federation of one site."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_site import FakeWork, make_sites, run_server
from fake_site import make_grid as fake_grid
from flwr.app import Message

from fedpref.errors import FedPrefError
from fedpref.evaluation.metrics import EvaluationCounts, summarise


class Killed(BaseException):
    """Ends the server at once, as a signal would."""


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {
        "runs-dir": str(folder / "runs"),
        "run-id": "r",
        "rounds": 2,
        "join-deadline": 2.0,
        "strategy": "local",
    }
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def rounds_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["bytes"]
        for site in row["sites"].values():
            del site["seconds"]
    return rows


def adapters_of(run: Path) -> dict[str, bytes]:
    folder = run / "adapters"
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safe*"))}


def sites_of(folder: Path) -> list[FakeWork]:
    return make_sites(folder, [3, 1, 4])


def test_each_site_gets_what_a_federation_of_one_gives_it(tmp_path: Path) -> None:
    together = tmp_path / "together"
    run_server(fake_grid(sites_of(together), settings(together)), settings(together))
    run = together / "runs" / "r"
    for number, name in enumerate(("site-a", "site-b", "site-c")):
        single = tmp_path / name
        config = settings(single, strategy="pair-fedavg")
        run_server(fake_grid(sites_of(single)[number : number + 1], config), config)
        own = run / "sites" / name
        assert adapters_of(own) == adapters_of(single / "runs" / "r")
        assert len(adapters_of(own)) == 3
        assert rounds_of(own) == rounds_of(single / "runs" / "r")


def test_the_rounds_of_all_sites_are_scored_together(tmp_path: Path) -> None:
    run_server(fake_grid(sites_of(tmp_path), settings(tmp_path)), settings(tmp_path))
    summary = json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["adapter"] is None
    assert [record["round"] for record in summary["rounds"]] == [0, 1, 2]
    for record in summary["rounds"]:
        counts = {
            site: EvaluationCounts.from_dict(entry["counts"])
            for site, entry in record["sites"].items()
        }
        assert list(counts) == ["site-a", "site-b", "site-c"]
        scores = summarise(counts)
        assert record["client_mean"] == scores.client_mean
        assert record["worst_site"] == scores.worst_site
        assert {site: entry["pairs"] for site, entry in record["sites"].items()} == {
            "site-a": 3,
            "site-b": 1,
            "site-c": 4,
        }
        assert all(entry["weight"] == 1.0 for entry in record["sites"].values())
    assert summary["bytes"]["up"] == sum(r["bytes"]["up"] for r in summary["rounds"])


def test_a_killed_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_server(fake_grid(sites_of(whole), settings(whole)), settings(whole))
    seen = {"trained": 0}

    def tamper(site: int, reply: Message) -> Message:
        seen["trained"] += reply.metadata.message_type == "train"
        if seen["trained"] >= 5:
            raise Killed
        return reply

    sites = sites_of(cut)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, settings(cut), tamper=tamper), settings(cut))
    assert not (cut / "runs" / "r" / "summary.json").exists()
    config = settings(cut, resume=str(cut / "runs" / "r"))
    run_server(fake_grid(sites, config), config)
    runs = [folder / "runs" / "r" for folder in (whole, cut)]
    assert rounds_of(runs[0]) == rounds_of(runs[1])
    for name in ("site-a", "site-b", "site-c"):
        first, second = (adapters_of(run / "sites" / name) for run in runs)
        assert first == second


def test_a_site_without_pairs_keeps_the_untrained_adapter(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, [3, 0])
    run_server(fake_grid(sites, settings(tmp_path)), settings(tmp_path))
    own = tmp_path / "runs" / "r" / "sites" / "site-b"
    hashes = {row["adapter"] for row in rounds_of(own)}
    assert len(hashes) == 1
    assert not any(row["trained"] for row in rounds_of(own))


def test_a_site_that_stays_away_keeps_the_run_open(tmp_path: Path) -> None:
    first = settings(tmp_path)
    sites = sites_of(tmp_path)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, first, tamper=killed_by_training), first)
    again = settings(tmp_path, resume=str(tmp_path / "runs" / "r"), quorum=2, min_sites=2)
    grid = fake_grid(sites[:2], again)
    with pytest.raises(FedPrefError, match="site-c did not join"):
        run_server(grid, again)
    assert not (tmp_path / "runs" / "r" / "summary.json").exists()


def killed_by_training(site: int, reply: Message) -> Message:
    if reply.metadata.message_type == "train":
        raise Killed
    return reply


def test_a_failing_site_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)

    def fail(round_: int) -> None:
        if round_ == 1:
            raise ValueError("private")

    sites[1].on_train = fail
    with pytest.raises(FedPrefError, match="site-b") as caught:
        run_server(fake_grid(sites, settings(tmp_path)), settings(tmp_path))
    assert "private" not in str(caught.value)
    run = tmp_path / "runs" / "r"
    assert len(rounds_of(run / "sites" / "site-a")) == 3
    assert len(rounds_of(run / "sites" / "site-b")) == 1
    assert not (run / "summary.json").exists()
