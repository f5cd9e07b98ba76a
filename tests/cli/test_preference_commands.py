"""`fedpref teach`, `pairs`, `project` and `score`, called as a user calls them."""

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli.pairs import pairs
from fedpref.cli.project import project
from fedpref.cli.score import read_target, score
from fedpref.cli.teach import teach
from fedpref.data import Annotation, Report, SitePolicy, write_site
from fedpref.errors import DataError
from fedpref.task import Structure

app = typer.Typer()
for command in (teach, pairs, project, score):
    app.command()(command)

EFFUSION = Structure((), [("pleural effusion", "left lung")])


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_site(
            tmp_path / "sites" / name,
            name=name,
            description="invented",
            policy=SitePolicy(),
            reports=[
                Report("r1", "p1", "train", "Left effusion. No other opacity on the right."),
                Report("r2", "p2", "dev", "Clear."),
            ],
            annotations=[Annotation("r1", EFFUSION), Annotation("r2", Structure())],
        )
    return tmp_path / "sites"


def call(*arguments: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def test_teach_then_pairs(sites: Path) -> None:
    taught = call("teach", str(sites), "--json")
    assert taught.exit_code == 0, taught.output
    rows = json.loads(taught.stdout)
    assert [(row["site"], row["teacher"]) for row in rows] == [
        (site, teacher)
        for site in ("a", "b")
        for teacher in ("careful", "coarse", "literal", "eager")
    ]
    assert all((row["total"], row["reused"]) == (2, 0) for row in rows)
    made = json.loads(call("pairs", str(sites / "a"), str(sites), "--json").stdout)
    assert made["sites"] == [
        {"site": name, "train": 1, "dev": 0, "too_long": 0} for name in ("a", "b")
    ]
    assert {row["split"]: row["pairs"] for row in made["audit"]["splits"]} == {"train": 2, "dev": 0}
    table = call("pairs", str(sites)).stdout
    assert all(name in table for name in ("careful", "coarse", "literal", "eager", "rejected"))
    assert "dev: 0 pairs of 2 reports, no pairs" in table
    assert "train: 2 pairs of 2 reports, margin mean" in table


def test_pairs_before_teach_says_what_to_run(sites: Path) -> None:
    result = call("pairs", str(sites))
    assert isinstance(result.exception, DataError)
    assert "fedpref teach" in str(result.exception)


def test_a_command_is_a_teacher(sites: Path) -> None:
    line = f"command:own={sys.executable} -c 'print(\"{{}}\")'"
    assert (
        json.loads(call("teach", str(sites), "--teachers", line, "--json").stdout)[0]["teacher"]
        == "own"
    )
    made = json.loads(call("pairs", str(sites), "--teachers", line, "--json").stdout)
    row = made["audit"]["teachers"][0]
    assert (row["outputs"], row["discarded"]) == (2, 2)
    assert row["failures"] == {"missing_key": 2}


def test_a_folder_without_sites_is_named(tmp_path: Path) -> None:
    result = call("teach", str(tmp_path))
    assert isinstance(result.exception, DataError)
    assert str(tmp_path) in str(result.exception)


@pytest.mark.parametrize(
    ("text", "eligible", "failure"),
    [
        (EFFUSION.to_json(), True, None),
        (b"\xff\xfe", False, "no_object"),
        ('{"diseases":[],"diseases":[],"findings":[]}', False, "duplicate_key"),
    ],
)
def test_project_reads_standard_input(
    text: str | bytes, eligible: bool, failure: str | None
) -> None:
    result = call("project", text=text)
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert (value["eligible"], value["failure"]) == (eligible, failure)
    assert value.keys() == {"structure", "eligible", "strict", "failure", "dropped"}


def test_score_prints_three_numbers(tmp_path: Path) -> None:
    candidate, target = tmp_path / "candidate.txt", tmp_path / "target.json"
    both = Structure((), [("pleural effusion", "left lung"), ("pleural effusion", "right lung")])
    candidate.write_text(f"Here it is: {both.to_json()}")
    target.write_text(EFFUSION.to_json())
    arguments = ("score", "--candidate", str(candidate), "--target", str(target))
    value = json.loads(call(*arguments, "--json").stdout)
    # One right of two given and one asked for: 2·1/(2·1+1+0).
    assert value["location_disease_f1"] == pytest.approx(2 / 3)
    assert value["disease_f1"] == 1
    assert value["composite"] == pytest.approx(0.70 * 2 / 3 + 0.25 + 0.05)
    assert "0.6667" in call(*arguments).stdout


def test_score_refuses_what_cannot_be_projected(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no answer")
    (tmp_path / "t").write_text(EFFUSION.to_json())
    result = call("score", "--candidate", str(tmp_path / "c"), "--target", str(tmp_path / "t"))
    assert isinstance(result.exception, DataError)
    assert "no_object" in str(result.exception)


def test_a_target_may_leave_things_open(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps({**EFFUSION.to_dict(), "ignore": {"diseases": ["pneumonia"]}}))
    structure, ignore = read_target(path)
    assert structure == EFFUSION
    assert ignore.diseases == {"pneumonia"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"diseases":[]}', '{"diseases":["gout"],"findings":[]}',
     '{"diseases":[],"findings":[],"ignore":{"diseases":["gout"]}}',
     '{"diseases":[],"findings":[],"ignore":[]}'],
)  # fmt: skip
def test_a_bad_target_is_named_with_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "target.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"target\.json"):
        read_target(path)
