"""The folder that a report leaves, and the page in it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedpref.cli.report import report
from fedpref.errors import ConfigError
from fedpref.report import write_report
from fedpref.report.comparison import comparison_tables
from fedpref.report.page import comparison_page, leaves_tables, render
from fedpref.report.result import Comparison

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

Value = dict[str, Any]
Write = Callable[[Value], Path]
WriteRun = Callable[[Value, Value], Path]

app = typer.Typer()
app.command()(report)


class Page(HTMLParser):
    """Tags, ids and addresses of a page, and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data", "srcset"):
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def rendered(value: Value) -> str:
    """The page of a comparison without its figures."""
    result = Comparison.model_validate_json(json.dumps(value))
    return render(comparison_page(result, comparison_tables(result) | leaves_tables(), {}))


def page_of(folder: Path) -> tuple[str, Page]:
    html = (folder / "report" / "report.html").read_text(encoding="utf-8")
    return html, Page(html)


def test_all_forms_are_written(run_files: tuple[Value, Value], write_run: WriteRun) -> None:
    folder = write_run(*run_files)
    files = write_report(folder)
    assert files[0] == folder / "report" / "report.html"
    assert all(path.is_file() for path in files)
    assert {path for path in (folder / "report").rglob("*") if path.is_file()} == set(files)
    names = {str(path.relative_to(folder / "report")) for path in files}
    for stem in ("rounds", "sites", "weights", "costs", "configuration", "leaves-training"):
        assert {f"tables/{stem}.csv", f"tables/{stem}.md"} <= names
    assert {"figures/rounds.png", "figures/rounds.svg"} <= names


def test_a_comparison_has_its_tables_and_figures(written: dict[str, Path]) -> None:
    names = {path.name for path in (written["comparison"] / "report").rglob("*.*")}
    for stem in ("headline", "effects", "effects-by-round", "sites", "audit-divergence", "runs"):
        assert {f"{stem}.csv", f"{stem}.md"} <= names
    for stem in ("audit-support", "locked-test", "contrast-oracle", "strategy-sites"):
        assert {f"{stem}.csv", f"{stem}.md"} <= names
    assert "summary.json" in names
    for stem in ("trajectories", "site-effects", "weights"):
        assert {f"{stem}.png", f"{stem}.svg"} <= names


def test_equal_input_gives_equal_bytes_and_nothing_else_is_left(
    written: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(written["comparison"], tmp_path / "copy")
    before = {path: path.read_bytes() for path in (folder / "report").rglob("*.*")}
    (folder / "report" / "stray.txt").write_text("of an earlier version")
    assert {path: path.read_bytes() for path in write_report(folder)} == before
    files = ["comparison.json", "contrast.json", "report", "test.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert not (folder / "report" / "stray.txt").exists()


def test_a_report_that_fails_leaves_the_earlier_one(
    written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(written["run"], tmp_path / "copy")
    page = (folder / "report" / "report.html").read_bytes()

    def broken(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("fedpref.report.tables.Table.to_markdown", broken)
    with pytest.raises(OSError, match="disk full"):
        write_report(folder)
    assert (folder / "report" / "report.html").read_bytes() == page
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "report",
        "summary.json",
    ]


def test_the_page_needs_nothing_and_runs_nothing(written: dict[str, Path]) -> None:
    html, page = page_of(written["comparison"])
    assert not {"script", "iframe", "object", "embed", "img"} & set(page.tags)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "url(http" not in html
    assert "@import" not in html
    assert len(page.ids) == len(set(page.ids))
    targets = {address[1:] for address in page.addresses if address.startswith("#")}
    assert targets <= set(page.ids)
    assert set(re.findall(r"url\(#(.*?)\)", html)) <= set(page.ids)


def test_the_banner_is_there_if_and_only_if_the_data_are_synthetic(
    comparison: Value,
) -> None:
    for synthetic in (True, False):
        html = rendered({**comparison, "synthetic": synthetic})
        assert ("Synthetic data." in "".join(Page(html).texts)) is synthetic


def test_the_page_holds_every_table_digest_and_seed(written: dict[str, Path]) -> None:
    files = sorted((written["comparison"] / "report").rglob("*.*"))
    text = "".join(page_of(written["comparison"])[1].texts)
    assert "5f2c" * 16 in text
    assert "20260713, 20260714, 20260715" in text
    assert "69.11 ± 0.17" in text
    titles = {p.read_text(encoding="utf-8").splitlines()[0][4:] for p in files if p.suffix == ".md"}
    assert len(titles) > 12
    assert all(title.replace("\\", "").replace("&amp;", "&") in text for title in titles)


EVIL = "<script>alert(1)</script>\"'&<b>"


def test_a_sites_name_is_escaped(written: dict[str, Path]) -> None:
    html, page = page_of(written["comparison"])
    assert "<script" not in html
    assert "script" not in page.tags
    assert page.tags.count("b") == 5  # of the heading's facts, and no other
    assert page.texts.count(EVIL + "$x$") > 3
    markdown = (written["comparison"] / "report" / "tables" / "sites.md").read_text("utf-8")
    assert "<script" not in markdown


def test_all_other_texts_are_escaped(comparison: Value) -> None:
    comparison["config"][EVIL] = comparison["versions"][EVIL] = EVIL
    comparison["digest"] = comparison["run"] = comparison["runs"][0]["path"] = EVIL
    comparison["effects"][0] |= {"low": None, "high": None, "degenerate": EVIL}
    comparison["audit"]["labels"][0] = EVIL
    html = rendered(comparison)
    page = Page(html)
    assert "<script" not in html
    assert "script" not in page.tags
    assert page.tags.count("b") == 5
    assert page.texts.count(EVIL) >= 7


def test_a_degenerate_interval_is_words_everywhere(comparison: Value) -> None:
    for row in comparison["effects"]:
        row |= {"effect": 0.0, "low": None, "high": None, "degenerate": "all draws are equal"}
    result = Comparison.model_validate_json(json.dumps(comparison))
    shown = [table.to_markdown() for table in comparison_tables(result).values()]
    for content in (rendered(comparison), *shown):
        assert "0.00 to 0.00" not in content
        assert "[0" not in content
    assert rendered(comparison).count("no interval: all draws are equal") > 20


def test_the_smallest_comparison(comparison: Value, write_comparison: Write) -> None:
    """One arm, one site, one round, nothing that may be absent."""
    site = "site-0"
    record = comparison["arms"]["fedpref"]["rounds"][0]
    for scores in (record, *record["by_seed"]):
        scores["sites"] = {site: scores["sites"][site]}
        scores.pop("disease_sites")
    small = {
        key: comparison[key] for key in ("kind", "complete", "run", "synthetic", "digest", "seeds")
    } | {
        "config": {},
        "rounds": 0,
        "selected_round": 0,
        "sites": {site: {"pairs": 3, "dev_reports": None, "dev_pairs": None}},
        "arms": {"fedpref": {**comparison["arms"]["fedpref"], "rounds": [record]}},
        "effects": [],
    }
    folder = write_comparison(small)
    names = {path.name for path in write_report(folder)}
    assert "headline.csv" in names
    assert "effects.csv" not in names
    assert "no data" in page_of(folder)[0]


def test_a_run_shows_rounds_sites_weights_bytes_and_who_was_left_out(
    run_files: tuple[Value, Value], write_run: WriteRun
) -> None:
    folder = write_run(*run_files)
    files = {path.name: path for path in write_report(folder)}
    _, page = page_of(folder)
    text = "".join(page.texts)
    assert "Synthetic data." not in text
    rows = {
        name: files[f"{name}.md"].read_text(encoding="utf-8").splitlines()
        for name in ("rounds", "sites", "weights", "costs", "left-out")
    }
    assert "| 2 | DPO | 52.33 | 40.00 | 52.73 | 80.00 |" in rows["rounds"]
    assert "| site-b | 60 | 40 | 12 | 45.00 | 51.00 | 57.00 | 63.00 |" in rows["sites"]
    assert "| site-d | 0 | " + " | ".join(["no data"] * 6) + " |" in rows["sites"]
    assert "| 2 | 0.6000 | 0.3000 | 0.0000 | 0.0000 |" in rows["weights"]
    assert "| all | 8.00 | 6.00 | 49.0 | 4.00 | 4.00 | 14.0 |" in rows["costs"]
    assert "| 2 | site-c | training | \\[FP600] the update is not finite |" in rows["left-out"]
    assert "| 0 | site-d | evaluation | withheld by the site's policy |" in rows["left-out"]
    assert "[FP600] the update is not finite" in text
    assert "c0ff" * 16 in text


def test_the_command_prints_the_page_or_json(
    run_files: tuple[Value, Value], write_run: WriteRun
) -> None:
    folder = write_run(*run_files)
    shown = CliRunner().invoke(app, [str(folder)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1] == str(folder / "report" / "report.html")
    told = json.loads(CliRunner().invoke(app, [str(folder), "--json"]).stdout)
    assert told["page"] == str(folder / "report" / "report.html")
    assert all(Path(path).is_file() for path in told["files"])


def test_without_the_libraries_the_command_says_what_to_install(
    comparison: Value, write_comparison: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedpref.report.write.find_spec",
        lambda name: None if name == "matplotlib" else find_spec(name),
    )
    with pytest.raises(ConfigError, match=r"matplotlib not found.*pip install 'fedpref\[report\]'"):
        write_report(write_comparison(comparison))


def test_importing_needs_neither_library() -> None:
    code = "import sys, fedpref.report;print(sorted({'matplotlib', 'jinja2'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
