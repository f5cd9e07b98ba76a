"""A run that was stopped anywhere and resumed equals one that was not, bit for bit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_site import FakeWork, make_sites, run_server
from fake_site import make_grid as fake_grid
from flwr.app import Message

from fedpref.config import load_config
from fedpref.errors import ConfigError, FedPrefError, ResumeError


class Killed(BaseException):
    """Ends the server at once, as a signal would."""


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 3, "join-deadline": 2.0}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def killed_at(kind: str, nth: int) -> Any:
    """A tamper function that kills the server when the nth reply of a kind comes."""
    seen = {"n": 0}

    def tamper(site: int, reply: Message) -> Message:
        if reply.metadata.message_type == kind:
            seen["n"] += 1
            if seen["n"] == nth:
                raise Killed
        return reply

    return tamper


def result(folder: Path) -> dict[str, Any]:
    """All that must be equal: the adapters' bytes and the records without times and bytes."""
    run = folder / "runs" / "r"
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["bytes"]
        for site in row["sites"].values():
            del site["seconds"]
    files = {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted((run / "adapters").rglob("*"))
        if path.is_file()
    }
    return {"rows": rows, "files": files}


def sites_of(folder: Path) -> list[FakeWork]:
    return make_sites(folder, [3, 1, 4])


@pytest.mark.parametrize(
    ("kind", "nth"),
    [
        ("train", 1),  # in round 0
        ("train", 3),
        ("evaluate", 1),  # round 0 is trained and saved, not evaluated
        ("evaluate", 3),
        ("train", 4),  # in round 1
        ("train", 8),  # in round 2, one reply is in the spool
        ("evaluate", 8),
        ("evaluate", 12),  # the very last reply
    ],
)
def test_a_killed_run_resumes_to_the_same_result(tmp_path: Path, kind: str, nth: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_server(fake_grid(sites_of(whole), settings(whole)), settings(whole))

    sites = sites_of(cut)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, settings(cut), tamper=killed_at(kind, nth)), settings(cut))
    assert not (cut / "runs" / "r" / "summary.json").exists()
    config = settings(cut, resume=str(cut / "runs" / "r"), run_id="")
    run_server(fake_grid(sites, config), config)

    assert result(cut) == result(whole)
    assert json.loads((cut / "runs" / "r" / "summary.json").read_text())["complete"] is True
    assert not (cut / "runs" / "r" / "open").exists()


def test_a_run_whose_sites_have_not_agreed_leaves_nothing_and_begins_again(tmp_path: Path) -> None:
    sites, config = sites_of(tmp_path), settings(tmp_path)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, config, tamper=killed_at("query", 2)), config)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="quorum = 9 is larger than the number of sites, 3"):
        run_server(fake_grid(sites, config), settings(tmp_path, quorum=9))
    assert not (tmp_path / "runs").exists()
    run_server(fake_grid(sites, config), config)
    assert (tmp_path / "runs" / "r" / "summary.json").exists()


def test_of_two_runs_of_one_name_one_begins(tmp_path: Path) -> None:
    config, sites = settings(tmp_path), sites_of(tmp_path)

    def other_run() -> None:  # while this one waits for its sites
        run_server(fake_grid(sites_of(tmp_path), config), config)

    sites[0].on_check = other_run
    with pytest.raises(ConfigError, match="'r' exists already"):
        run_server(fake_grid(sites, config), config)
    assert result(tmp_path)


def test_a_strategy_that_lacks_sites_leaves_no_run(tmp_path: Path) -> None:
    config = settings(tmp_path, strategy="FedTrimmedAvg", strategy_options="beta = 0.1")
    with pytest.raises(ConfigError, match="needs the updates of 10 sites"):
        run_server(fake_grid(sites_of(tmp_path), config), config)
    assert not (tmp_path / "runs").exists()


def test_a_trained_round_is_evaluated_again_but_not_trained_again(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    config = settings(tmp_path)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, config, tamper=killed_at("evaluate", 4)), config)
    config = settings(tmp_path, resume=str(tmp_path / "runs" / "r"))
    run_server(fake_grid(sites, config), config)
    assert sites[0].calls.count(("train", 1)) == 1
    assert sites[0].calls.count(("evaluate", 1)) == 2


def test_a_resumed_run_sends_no_adapter_that_sites_still_hold(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    config = settings(tmp_path)
    with pytest.raises(Killed):
        run_server(fake_grid(sites, config, tamper=killed_at("train", 7)), config)
    config = settings(tmp_path, resume=str(tmp_path / "runs" / "r"))
    grid = fake_grid(sites, config)
    run_server(grid, config)
    first = [m for m in grid.sent if m.metadata.message_type == "train"][:3]
    assert [len(m.content.array_records) for m in first] == [0, 0, 0]


def test_sites_that_lost_everything_still_resume_to_the_same_result(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_server(fake_grid(sites_of(whole), settings(whole)), settings(whole))
    with pytest.raises(Killed):
        run_server(
            fake_grid(sites_of(cut), settings(cut), tamper=killed_at("train", 8)), settings(cut)
        )
    config = settings(cut, resume=str(cut / "runs" / "r"))
    run_server(fake_grid(sites_of(cut / "elsewhere"), config), config)
    assert result(cut) == result(whole)


def test_resuming_a_complete_run_asks_no_site(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    run_server(fake_grid(sites, settings(tmp_path)), settings(tmp_path))
    before = result(tmp_path)
    config = settings(tmp_path, resume=str(tmp_path / "runs" / "r"))
    grid = fake_grid(sites, config)
    run_server(grid, config)
    assert grid.sent == []
    assert result(tmp_path) == before


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    config = settings(tmp_path)
    with pytest.raises(Killed):
        run_server(fake_grid(sites_of(tmp_path), config, tamper=killed_at("train", 5)), config)
    return tmp_path


def test_a_changed_configuration_is_refused_naming_keys_and_values(stopped: Path) -> None:
    values = {"resume": str(stopped / "runs" / "r"), "seed": 1, "training.beta": 0.5}
    config = settings(stopped) | values
    with pytest.raises(FedPrefError) as caught:
        run_server(fake_grid(sites_of(stopped), config), config)
    assert caught.value.code == ResumeError.code
    assert "key seed: was 20260713 when the run started, is 1 now" in str(caught.value)
    assert "key training.beta: was 0.1 when the run started, is 0.5 now" in str(caught.value)


def test_waiting_and_places_may_change_on_resume(stopped: Path) -> None:
    config = settings(
        stopped, resume=str(stopped / "runs" / "r"), quorum=2, round_deadline=60.0, runs_dir="x"
    )
    run_server(fake_grid(sites_of(stopped), config), config)
    assert (stopped / "runs" / "r" / "summary.json").exists()


def test_a_run_may_go_on_without_a_site_that_is_gone(stopped: Path) -> None:
    config = settings(stopped, resume=str(stopped / "runs" / "r"), min_sites=2, join_deadline=0.5)
    run_server(fake_grid(sites_of(stopped)[:2], config), config)
    last = json.loads((stopped / "runs" / "r" / "rounds.jsonl").read_text().splitlines()[-1])
    assert list(last["sites"]) == ["site-a", "site-b", "site-c"]
    assert last["sites"]["site-c"]["no_counts_because"] == "the site has not joined"
    assert last["sites"]["site-a"]["weight"] == 3 / 4


def test_changed_pairs_at_a_site_are_refused(stopped: Path) -> None:
    config = settings(stopped, resume=str(stopped / "runs" / "r"))
    sites = sites_of(stopped)
    sites[1].pair_count = 2
    with pytest.raises(ResumeError, match=r"site site-b.*had 1 pairs.*has 2 now"):
        run_server(fake_grid(sites, config), config)


def test_a_changed_base_model_is_refused(stopped: Path) -> None:
    config = settings(stopped, resume=str(stopped / "runs" / "r"))
    sites = make_sites(stopped, [3, 1, 4], weights="v" * 64)
    with pytest.raises(ResumeError, match=r"key weights: weights was wwwwww.* is vvvvvv.* now"):
        run_server(fake_grid(sites, config), config)


def test_resuming_what_is_no_run_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path, resume=str(tmp_path))
    with pytest.raises(ResumeError, match="holds no run"):
        run_server(fake_grid(sites_of(tmp_path), config), config)


def test_a_new_run_does_not_overwrite_an_old_one(stopped: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        run_server(fake_grid(sites_of(stopped), settings(stopped)), settings(stopped))


def test_a_run_is_named_by_time_and_configuration(tmp_path: Path) -> None:
    config = settings(tmp_path, run_id="")
    run_server(fake_grid(sites_of(tmp_path), config), config)
    (run,) = (tmp_path / "runs").iterdir()
    written = json.loads((run / "config.json").read_text())
    read = load_config(written["config"])
    assert written["digest"] == read.digest
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{read.digest[:8]}", run.name)
    assert read == load_config(config)
