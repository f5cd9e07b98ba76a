"""`fedpref contrast`, called as a user calls it."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli.contrast import contrast
from fedpref.data import Annotation, Report, SiteDirectory, write_site
from fedpref.errors import ConfigError, DataError
from fedpref.evaluation.candidate_pools import Pool, contrast_pools, parse_pool
from fedpref.federation.report import SCORES
from fedpref.files import write_jsonl
from fedpref.preference.candidates import Candidate, report_hash
from fedpref.task import Ignore, Structure

app = typer.Typer()
app.command()(contrast)

LEFT = Structure((), [("pleural effusion", "left lung")])
RIGHT = Structure((), [("pleural effusion", "right lung")])
BOTH = Structure((), [*LEFT.findings, *RIGHT.findings])
NO = "secret, no object"

# Split, annotation, masks, then the answers of target-1, target-2 and greedy.
CASES: dict[str, list[tuple[str, Structure, Ignore, tuple[str, str, str]]]] = {
    "a": [
        ("dev", LEFT, Ignore(), (LEFT.to_json(), RIGHT.to_json(), RIGHT.to_json())),
        ("dev", BOTH, Ignore(), (LEFT.to_json(), LEFT.to_json(), LEFT.to_json())),
        ("diagnostic", LEFT, Ignore(), (LEFT.to_json(), LEFT.to_json(), NO)),
        ("test", LEFT, Ignore(), ("", "", "")),
    ],
    "b": [
        ("dev", RIGHT, Ignore(), (LEFT.to_json(), BOTH.to_json(), NO)),
        (
            "dev",
            Structure(),
            Ignore(frozenset({"pleural effusion"})),
            (LEFT.to_json(), Structure().to_json(), RIGHT.to_json()),
        ),
    ],
}
NAMES = ("target-1", "target-2", "greedy")

# The smallest complete run.
SUMMARY: dict[str, Any] = {
    "complete": True,
    "run": "r",
    "federation": "f",
    "digest": "d",
    "strategy": "pair-fedavg",
    "synthetic": False,
    "sites": {},
    "versions": {},
    "bytes": {"down": 0, "up": 0},
    "seconds": 0.0,
    "rounds": [
        {
            **dict.fromkeys(SCORES),
            "round": 0,
            "stage": "sft",
            "sites": {},
            "refused": {"training": {}, "evaluation": {}},
            "bytes": {half: {"down": 0, "up": 0} for half in ("training", "evaluation")}
            | {"down": 0, "up": 0},
            "seconds": {"training": 0.0, "evaluation": 0.0, "total": 0.0},
        }
    ],
}


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for name, cases in CASES.items():
        reports = [
            Report(f"secret-{k}", f"{name}-secret-p{k}", case[0], f"Secret text {k}.")
            for k, case in enumerate(cases)
        ]
        write_site(
            tmp_path / "sites" / name,
            name=name,
            reports=reports,
            annotations=[
                Annotation(report.report_id, case[1], case[2])
                for report, case in zip(reports, cases, strict=True)
            ],
        )
        for number, candidate in enumerate(NAMES):
            write_jsonl(
                tmp_path / "sites" / name / "candidates" / f"{candidate}.jsonl",
                [
                    asdict(
                        Candidate(
                            report.report_id,
                            candidate,
                            case[3][number],
                            report_hash(report.text),
                            "digest",
                        )
                    )
                    for report, case in zip(reports, cases, strict=True)
                    if report.split != "test"
                ],
            )
    return tmp_path / "sites"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def value(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output.lower()
    return json.loads(result.stdout)


def test_samples_against_a_greedy_baseline(sites: Path) -> None:
    got = value(sites, "--pool", "2 samples, T 0.7=target-*", "--baseline", "greedy")
    assert (got["kind"], got["split"], got["sites"]) == ("contrast", "dev", ["a", "b"])
    assert got["synthetic"] is False
    [pool] = got["pools"]
    assert pool["pool"] == "2 samples, T 0.7"
    assert pool["candidates"] == ["target-1", "target-2"]
    assert (pool["reports"], pool["patients"]) == (4, 4)
    # The masked report counts nothing. target-1: tp 1, 1, 0; fp 0, 0, 1; fn 0, 1, 1: 4/7.
    # target-2: tp 0, 1, 1; fp 1, 0, 1; fn 1, 1, 0: 4/8. greedy: tp 0, 1, 0; fp 1; fn 1, 1, 1: 2/6.
    assert pool["f1"] == pytest.approx({"target-1": 4 / 7, "target-2": 1 / 2})
    assert pool["baseline_f1"] == pytest.approx(1 / 3)
    # Oracle: target-1, either, target-2: tp 1, 1, 1; fp 0, 0, 1; fn 0, 1, 0: 6/8.
    assert pool["oracle_f1"] == pytest.approx(3 / 4)
    assert pool["headroom"] == pytest.approx(3 / 4 - 1 / 3)
    assert pool["best"] == "target-1"
    assert pool["over_best"]["effect"] == pytest.approx(3 / 4 - 4 / 7)
    # One draw in 256 holds the masked report four times, and so no positives.
    assert "draws have an arm without positives" in pool["over_best"]["degenerate"]
    # Reports 1 and 3 form pairs; report 2's answers are the same; the masked one differs.
    assert (pool["usable"], pool["coverage"]) == (2, 0.5)
    assert (pool["identical"], pool["identical_share"]) == (1, 0.25)


def test_several_pools_and_all(sites: Path) -> None:
    got = value(sites, "--pool", "target-1,greedy", "--pool", "all=*", "--draws", 20)
    assert [pool["pool"] for pool in got["pools"]] == ["target-1,greedy", "all"]
    assert got["pools"][1]["candidates"] == ["greedy", "target-1", "target-2"]
    assert value(sites, "--draws", 20)["pools"] == got["pools"][1:]
    diagnostic = value(sites, "--split", "diagnostic")["pools"][0]
    assert diagnostic["reports"] == 1
    assert diagnostic["identical"] == 0
    assert "one patient" in diagnostic["over_best"]["degenerate"]


def test_the_tables(sites: Path) -> None:
    printed = call(sites / "a", sites / "b", "--pool", "s=target-*").stdout
    for words in ("Headroom", "50.00", "75.00", "target-2", "all candidates say"):
        assert words in printed
    assert "secret" not in printed.lower()
    one_line = " ".join(call(sites, "--split", "diagnostic").stdout.split())
    assert "no interval" in one_line


def test_the_report_of_a_run_shows_it(sites: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    refused = call(sites, "--into", tmp_path / "nowhere")
    assert "there is no such folder" in str(refused.exception)
    run = tmp_path / "run"
    run.mkdir()
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    (run / "config.json").write_text('{"config": {}, "digest": "d"}')
    got = value(sites, "--into", run)
    assert json.loads((run / "contrast.json").read_text()) == got
    assert "Candidate contrast" in (run / "report" / "report.html").read_text()
    printed = call(sites, "--into", run).stdout
    assert printed.splitlines()[-1] == str(run / "report" / "report.html")


def test_the_test_split_stays_locked(sites: Path) -> None:
    assert call(sites, "--split", "test").exit_code != 0
    loaded = [SiteDirectory.load(sites / name) for name in CASES]
    with pytest.raises(ConfigError, match="test split"):
        contrast_pools(loaded, [Pool("p", NAMES)], split="test")


def test_what_is_missing_or_old_is_named(sites: Path) -> None:
    result = call(sites, "--split", "train")
    assert "no site has a train report" in str(result.exception)
    result = call(sites, "--baseline", "none")
    assert isinstance(result.exception, DataError)
    assert (result.exception.site, "greedy, target-1" in str(result.exception)) == ("a", True)
    path = sites / "b" / "candidates" / "greedy.jsonl"
    rows = path.read_text().splitlines()
    path.write_text(rows[0].replace(report_hash("Secret text 0."), "other") + "\n")
    result = call(sites)
    assert isinstance(result.exception, DataError)
    assert "of 2 reports, 1 have no candidate 'greedy' and 1 have one" in str(result.exception)
    assert "secret" not in str(result.exception).lower().replace(str(sites).lower(), "")
    for name in CASES:
        shutil.rmtree(sites / name / "candidates")
    assert "fedpref teach" in str(call(sites).exception)


def test_pools_are_parsed() -> None:
    names = ("a", "b1", "b2")
    assert parse_pool("b2, a", names) == Pool("b2, a", ("b2", "a"))
    assert parse_pool("x=b*,a,b1", names) == Pool("x", ("b1", "b2", "a"))
    for bad, words in (("c*,a", "'c\\*' names no"), ("a,,b1", "'' names no"), ("a,a", "one cand")):
        with pytest.raises(ConfigError, match=words):
            parse_pool(bad, names)
