"""`fedpref data openi`, `partition` and `site check`, called as a user calls them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli import data, site
from fedpref.cli.partition import partition
from fedpref.data import Annotation, Report, SiteDirectory, check_site, write_site
from fedpref.errors import ConfigError, DataError, FedPrefErrors
from fedpref.task import Structure

app = typer.Typer()
app.add_typer(data.app, name="data")
app.add_typer(site.app, name="site")
app.command()(partition)


def call(*arguments: object, raises: type[Exception] | None = None) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if raises is None:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, raises), result.output
    return result


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eighty invented rows: forty normal, twenty-eight of them worded alike."""
    path = tmp_path / "reports.csv"
    codes = ["normal", "Pneumonia", "normal", "Pleural Effusion/left"]
    rows = [
        f"{i},{codes[i % 4]},{f'Words {i % 3 if i % 4 == 0 or i % 20 == 2 else i}.'},Same."
        for i in range(80)
    ]
    path.write_text("\n".join(["uid,MeSH,findings,impression", *rows]) + "\n")
    return path


@pytest.fixture
def pool(tmp_path: Path, table: Path) -> Path:
    call("data", "openi", table, tmp_path / "pool")
    return tmp_path / "pool"


def test_openi_writes_a_sound_pool_and_keeps_equal_texts_together(
    tmp_path: Path, table: Path
) -> None:
    counts = json.loads(call("data", "openi", table, tmp_path / "pool", "--json").stdout)
    assert counts["usable"] == 80
    assert sum(counts["splits"].values()) == 80
    assert check_site(tmp_path / "pool") == []
    where: dict[str, set[str]] = {}
    for report in SiteDirectory.load(tmp_path / "pool").reports:
        where.setdefault(report.text, set()).add(report.split)
    assert all(len(splits) == 1 for splits in where.values())
    call("data", "openi", table, tmp_path / "pool", raises=DataError)  # never replaced


def test_openi_names_a_missing_table_and_leaves_nothing(tmp_path: Path) -> None:
    call("data", "openi", tmp_path / "none.csv", tmp_path / "pool", raises=DataError)
    assert list(tmp_path.iterdir()) == []


def test_partition_gives_every_report_to_one_sound_site(tmp_path: Path, pool: Path) -> None:
    out = tmp_path / "sites"
    shown = json.loads(call("partition", pool, out, "--shares", "3,2,1", "--json").stdout)
    assert [row["site"] for row in shown["sites"]] == ["site-1", "site-2", "site-3"]
    assert shown["not_written"] == []
    assert set(shown["divergence"]) == {"train", "dev", "test"}
    assert 0 < shown["divergence"]["train"]["p_value"] <= 1
    sites = [SiteDirectory.load(path) for path in sorted(out.iterdir())]
    assert [len(s.split("dev")) for s in sites] == [row["dev"] for row in shown["sites"]]
    ids = [report.report_id for s in sites for report in s.reports]
    assert sorted(ids) == sorted(r.report_id for r in SiteDirectory.load(pool).reports)
    again = tmp_path / "again"
    call("partition", pool, again, "--shares", "3,2,1")
    assert (again / "site-2/reports.jsonl").read_bytes() == (
        out / "site-2/reports.jsonl"
    ).read_bytes()


def test_a_site_that_would_hold_nothing_is_named_and_not_written(
    tmp_path: Path, pool: Path
) -> None:
    result = call("partition", pool, tmp_path / "sites", "--shares", "1,0")
    assert "not written: site-2" in result.stdout
    assert [path.name for path in (tmp_path / "sites").iterdir()] == ["site-1"]
    call("site", "check", tmp_path / "sites")


def test_more_sites_than_the_default_are_of_equal_size(tmp_path: Path, pool: Path) -> None:
    arguments = ("--sites", 20, "--alpha", 0.01, "--json")
    shown = json.loads(call("partition", pool, tmp_path / "sites", *arguments).stdout)
    assert len(shown["sites"]) == 20
    assert sum(row[split] for row in shown["sites"] for split in ("train", "dev", "test")) == 80


@pytest.mark.parametrize(
    "options",
    [
        ("--shares", "a,b"),
        ("--shares", "1,-1"),
        ("--shares", "0,0"),
        ("--sites", "2", "--shares", "1,1,1"),
        ("--alpha", "0"),
        ("--alpha", "nan"),
        ("--alpha", "inf"),
    ],
)
def test_bad_options_leave_nothing(tmp_path: Path, pool: Path, options: tuple[str, ...]) -> None:
    call("partition", pool, tmp_path / "sites", *options, raises=ConfigError)
    assert not (tmp_path / "sites").exists()


def test_site_check_lists_every_problem_of_every_site(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_site(
            tmp_path / name,
            name=name,
            description="",
            reports=[Report("r1", "p1", "train", "Clear.")],
            annotations=[Annotation("r1", Structure())],
        )
    (tmp_path / "b/reports.jsonl").write_text("{\n[]\n")
    arguments = ("site", "check", tmp_path / "none", tmp_path / "a", tmp_path / "b")
    error = call(*arguments, raises=FedPrefErrors).exception
    assert "no such folder" in str(error)
    assert "reports.jsonl:1" in str(error)
    assert "reports.jsonl:2" in str(error)
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    shown = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [row["site"] for row in shown["sites"]] == ["a"]
    assert len(shown["problems"]) == 3
