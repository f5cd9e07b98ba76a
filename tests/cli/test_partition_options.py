"""`fedpref partition` with drawn sizes and enriched labels, called as a user calls it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli.partition import partition
from fedpref.data import Annotation, Report, SiteDirectory, check_site, write_site
from fedpref.errors import ConfigError
from fedpref.task import Structure

app = typer.Typer()
app.command()(partition)


def call(*arguments: object, raises: type[Exception] | None = None) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if raises is None:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, raises), result.output
    return result


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Three hundred train and sixty dev reports; every fifth has pneumonia, the rest nothing."""
    reports = [
        Report(f"r{i}", f"p{i - (i % 10 == 9)}", "dev" if i >= 300 else "train", f"Words {i}.")
        for i in range(360)
    ]
    notes = [
        Annotation(r.report_id, Structure(["pneumonia"] if i % 5 == 0 else []))
        for i, r in enumerate(reports)
    ]
    write_site(tmp_path / "pool", name="pool", description="", reports=reports, annotations=notes)
    return tmp_path / "pool"


def test_drawn_sizes_are_seeded_exact_and_shown(tmp_path: Path, pool: Path) -> None:
    options = ("--quantity", 0.7, "--seed", 5, "--json")
    shown = json.loads(call(pool, tmp_path / "sites", *options).stdout)
    again = json.loads(call(pool, tmp_path / "again", *options).stdout)
    assert shown == again
    assert len(shown["shares"]) == 6
    assert sum(row["train"] for row in shown["sites"]) == 300
    for row, share in zip(shown["sites"], shown["shares"], strict=True):
        assert abs(row["train"] - 300 * share) <= 2  # a patient has at most two reports
    other = call(pool, tmp_path / "other", "--quantity", 0.7, "--seed", 6, "--json")
    assert json.loads(other.stdout)["shares"] != shown["shares"]
    three = call(pool, tmp_path / "three", "--quantity", 5, "--sites", 3, "--json")
    assert len(json.loads(three.stdout)["shares"]) == 3


def test_small_sites_hold_the_label_more_often(tmp_path: Path, pool: Path) -> None:
    options = ("--enrich-small", "pneumonia:8", "--skew", 0, "--json")
    shown = json.loads(call(pool, tmp_path / "sites", *options).stdout)
    [row] = shown["enriched"]
    assert row["sites"] == ["site-4", "site-5", "site-6"]
    assert (row["label"], row["factor"]) == ("pneumonia", 8)
    assert row["pool"] == {"train": 0.2, "dev": 0.2}
    assert row["there"]["train"] > 0.35
    assert "shares" not in shown
    plain = json.loads(call(pool, tmp_path / "plain", "--skew", 0, "--json").stdout)
    assert set(plain) == {"sites", "not_written", "divergence"}
    assert [r["train"] for r in plain["sites"]] == [r["train"] for r in shown["sites"]]
    # The table says what the files hold.
    rows = [
        site.annotations[report.report_id].structure.diseases
        for name in row["sites"]
        for site in [SiteDirectory.load(tmp_path / "sites" / name)]
        for report in site.split("train")
    ]
    assert sum("pneumonia" in diseases for diseases in rows) / len(rows) == row["there"]["train"]
    assert all(check_site(path) == [] for path in (tmp_path / "sites").iterdir())


def test_a_named_site_and_the_default_factor(tmp_path: Path, pool: Path) -> None:
    options = ("--enrich", "pneumonia=site-2", "--enrich", "normal=site-3:2.5")
    shown = json.loads(call(pool, tmp_path / "json", *options, "--json").stdout)
    assert [(row["sites"], row["factor"]) for row in shown["enriched"]] == [
        (["site-2"], 4),
        (["site-3"], 2.5),
    ]
    text = call(pool, tmp_path / "sites", *options).stdout
    assert "Enriched labels" in text
    assert "2.5" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--quantity", "0"), "--quantity"),
        (("--quantity", "nan"), "--quantity"),
        (("--quantity", "inf"), "--quantity"),
        (("--quantity", "1", "--shares", "1,2"), "--shares"),
        (("--enrich", "pneumonia"), "names no site"),
        (("--enrich", "pneumonia=site-9"), "site-1, site-2"),
        (("--enrich", "flu=site-1"), "'flu'"),
        (("--enrich", "pneumonia=site-1:1"), "above 1"),
        (("--enrich", "pneumonia=site-1:"), "above 1"),
        (("--enrich", "pneumonia=site-1:nan"), "above 1"),
        (("--enrich", "pneumonia=site-1:1e9"), "up to 1000"),
        (("--enrich-small", "flu:2"), "'flu'"),
        (("--enrich-small", "pneumonia:many"), "'many'"),
        (("--enrich-small", "pneumonia", "--sites", "3"), "no site is small"),
        (("--enrich-small", "pneumonia", "--enrich", "pneumonia=site-6"), "twice"),
        (("--enrich", "pneumothorax=site-1"), "no report"),
    ],
)
def test_bad_options_are_named_and_leave_nothing(
    tmp_path: Path, pool: Path, options: tuple[str, ...], said: str
) -> None:
    error = call(pool, tmp_path / "sites", *options, raises=ConfigError).exception
    assert said in str(error)
    assert not (tmp_path / "sites").exists()
