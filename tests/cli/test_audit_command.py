"""`fedpref audit`, called as a user calls it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli.audit import audit
from fedpref.data import Annotation, Report, SiteDirectory, SitePolicy, write_site
from fedpref.errors import DataError
from fedpref.preference import build_pairs, generate, make_teachers
from fedpref.task import Ignore, Structure

app = typer.Typer()
app.command()(audit)

EFFUSION = Structure((), [("pleural effusion", "left lung")])
KINDS = {
    "e": ("Left effusion. No other opacity on the right.", EFFUSION, Ignore()),
    "n": ("Clear lungs.", Structure(), Ignore()),
    "u": ("Clear lungs.", Structure(), Ignore(frozenset({"pneumonia"}))),
}
COHORTS = ["train_reports", "train_pairs", "dev_reports", "dev_pairs"]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(
        name: str, train: str, dev: str = "en", *, minimum: int = 5, pairs: bool = True
    ) -> Path:
        path = tmp_path / "sites" / name
        reports, annotations = [], []
        for split, kinds in (("train", train), ("dev", dev)):
            for number, kind in enumerate(kinds):
                text, structure, ignore = KINDS[kind]
                key = f"{name}-secret-{split}-{number}"
                reports.append(Report(key, f"p-{key}", split, text))
                annotations.append(Annotation(key, structure, ignore))
        write_site(
            path,
            name=name,
            synthetic=True,
            policy=SitePolicy(min_cell_size=minimum),
            reports=reports,
            annotations=annotations,
        )
        if pairs:
            site = SiteDirectory.load(path)
            teachers = make_teachers("rules")
            for teacher in teachers:
                generate(site, teacher)
            build_pairs(site, [teacher.name for teacher in teachers])
        return path

    return write


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def value(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    return json.loads(result.stdout)


def test_a_folder_of_sites(write: Write, tmp_path: Path) -> None:
    write("a", "eeen")
    write("b", "nnu")
    got = value(tmp_path / "sites", "--permutations", 99)
    assert (got["kind"], got["mode"], got["synthetic"]) == ("audit", "simulation", True)
    assert got["labels"][1] == "pleural effusion"
    assert got["labels"][-1] == "normal"
    assert len(got["labels"]) == 10
    assert [cohort["cohort"] for cohort in got["cohorts"]] == COHORTS
    reports, pairs, dev, _ = got["cohorts"]
    assert reports["sizes"] == {"a": 4, "b": 3}
    assert reports["positive"] == {"a": 3, "b": 0}
    # An undecided report is neither diseased nor normal.
    assert [reports["prevalence"][s][-1] for s in "ab"] == pytest.approx([1 / 4, 2 / 3])
    assert 0 < reports["p_value"] <= 1
    # The teachers disagree on the effusions only: those reports have pairs.
    assert pairs["sizes"] == {"a": 3, "b": 0}
    assert pairs["prevalence"]["a"][1] == 1
    assert pairs["prevalence"]["b"] is None
    assert dev["divergence"] == 0
    assert got["support"][1]["train_pairs"] == 0
    assert value(tmp_path / "sites", "--permutations", 99) == got


def test_the_tables(write: Write, tmp_path: Path) -> None:
    write("a", "eeen")
    write("b", "nnu")
    printed = call(tmp_path / "sites", "--permutations", 9).stdout
    for words in ("Support", "Null 95th", "Prevalence (%), dev pairs", "Synthetic", "normal"):
        assert words in printed
    # One naming, the report's: the sites' own.
    assert "S0" not in printed
    [header] = [line for line in printed.splitlines() if line.split()[:1] == ["Label"]][:1]
    assert header.split() == ["Label", "a", "b", "All"]
    assert "secret" not in printed
    told = call(tmp_path / "sites", "--deployment").stdout
    assert "Null 95th" not in told
    assert "withheld" in told


def test_before_there_are_pairs_and_with_some(write: Write, tmp_path: Path) -> None:
    write("a", "een", pairs=False)
    got = value(tmp_path / "sites")
    assert [cohort["cohort"] for cohort in got["cohorts"]] == ["train_reports", "dev_reports"]
    assert got["support"][0]["train_pairs"] is None
    assert "fedpref pairs" in call(tmp_path / "sites").stdout
    write("b", "een")
    result = call(tmp_path / "sites")
    assert isinstance(result.exception, DataError)
    assert result.exception.site == "a"


def test_a_deployment_is_its_sites_outputs_together(write: Write, tmp_path: Path) -> None:
    paths = [write("a", "e" * 8 + "n" * 6, minimum=2), write("b", "e" * 3 + "n" * 9, minimum=3)]
    files = []
    for path in paths:
        told = call(path, "--deployment", "--json").stdout
        assert "secret" not in told
        files.append(tmp_path / f"{path.name}.json")
        files[-1].write_text(told)
    got = value(*files)
    assert got == value(tmp_path / "sites", "--deployment")
    assert got == value(files[0], paths[1])
    cohort = got["cohorts"][0]
    assert got["mode"] == "deployment"
    assert (cohort["null_95"], cohort["p_value"], got["permutations"]) == (None, None, None)
    # Only effusion and normal have enough rows with and without them, at both sites.
    assert cohort["divergence_labels"] == 2
    # p over 26 rows: effusion 11/26, normal 15/26; both differ by 8/14 - 11/26 and 3/12 - 11/26.
    squares = 14 * (8 / 14 - 11 / 26) ** 2 + 12 * (3 / 12 - 11 / 26) ** 2
    assert cohort["divergence"] == pytest.approx((2 * squares / (26 * 2)) ** 0.5)
    # Two dev reports are fewer than site b's minimum of three.
    assert got["cohorts"][2]["sizes"] == {"a": 2, "b": None}
    assert got["support"][1]["dev_reports"] is None


def test_hand_written_sizes_and_prevalences(tmp_path: Path) -> None:
    path = tmp_path / "paper.json"
    cohort = {
        "cohort": "train_pairs",
        "sizes": {"S0": 1, "S1": 3},
        "prevalence": {"S0": [1.0], "S1": [0]},
    }
    path.write_text(json.dumps({"labels": ["normal"], "cohorts": [cohort]}))
    [got] = value(path)["cohorts"]
    assert got["divergence"] == pytest.approx((3 / 16) ** 0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": {"S0": 1}}, "no size or no prevalence"),
        ({"sizes": {"S0": -1, "S1": 3}}, "greater than or equal to 0"),
        ({"prevalence": {"S0": [1.5], "S1": [0]}}, "less than or equal to 1"),
        ({"prevalence": {"S0": [1, 0], "S1": [0]}}, "2 prevalences"),
        ({"prevalence": {"S0": None, "S1": [0]}}, "rows but no prevalences"),
        ({"cohort": "test"}, "cohorts.0.cohort"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    cohort = {
        "cohort": "train_pairs",
        "sizes": {"S0": 1, "S1": 3},
        "prevalence": {"S0": [1.0], "S1": [0]},
    }
    path = tmp_path / "told.json"
    path.write_text(json.dumps({"labels": ["normal"], "cohorts": [{**cohort, **change}]}))
    result = call(path)
    assert isinstance(result.exception, DataError)
    assert words in str(result.exception)
    assert "told.json" in str(result.exception)


def test_what_does_not_fit_together_is_refused(write: Write, tmp_path: Path) -> None:
    site = write("a", "en")
    told = tmp_path / "a.json"
    told.write_text(call(site, "--deployment", "--json").stdout)
    twice = call(told, site)
    assert isinstance(twice.exception, DataError)
    assert "given twice" in str(twice.exception)
    other = tmp_path / "b.json"
    other.write_text('{"labels": ["gout"], "cohorts": []}')
    assert "labels differ" in str(call(told, other).exception)
    site.rename(site.with_name("copy"))
    write("a", "en")
    same = call(tmp_path / "sites")
    assert isinstance(same.exception, DataError)
    assert "two sites have this name" in str(same.exception)
