"""`report/` of a run or comparison: page, tables and figures, put in place all at once."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fedpref.errors import ConfigError
from fedpref.files import atomic_dir
from fedpref.report import figures
from fedpref.report.comparison import comparison_said, comparison_tables
from fedpref.report.contrast import contrast_tables, load_contrast
from fedpref.report.figures import Picture
from fedpref.report.locked_test import load_locked_test, locked_test_tables
from fedpref.report.page import Page, comparison_page, leaves_tables, render, run_page
from fedpref.report.partitions import load_partitions, partitions_tables
from fedpref.report.partitions_page import partitions_figures, partitions_page
from fedpref.report.plain import run_said, run_tables
from fedpref.report.result import Comparison, load_result
from fedpref.report.summary import comparison_summary
from fedpref.report.tables import Table
from fedpref.report.weights_figure import weights_by_round

FOLDER: Final = "report"
PAGE: Final = "report.html"
SUMMARY: Final = "summary.json"
_NEEDED: Final = ("jinja2", "matplotlib")


def write_report(run_dir: Path) -> tuple[Path, ...]:
    """Write `report/` into the folder of a run or comparison; return its files, the page first.

    An earlier report is replaced as a whole. ConfigError if a library that reports need is not
    installed, RoundError if there is nothing complete to report, DataError for a malformed file.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not found",
            why="a report needs them",
            fix="pip install 'fedpref[report]'",
        )
    page, tables, pictures, summary = _built(run_dir)
    folder = run_dir / FOLDER
    names = [PAGE]
    with atomic_dir(folder) as part:
        (part / PAGE).write_text(render(page), encoding="utf-8", newline="\n")
        if summary is not None:
            names.append(SUMMARY)
            _put(part / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
        for name, table in tables.items():
            for ending, content in (("csv", table.to_csv()), ("md", table.to_markdown())):
                names.append(f"tables/{name}.{ending}")
                _put(part / names[-1], content.encode())
        for name, picture in pictures.items():
            for ending, data in (("png", picture.png), ("svg", picture.svg)):
                names.append(f"figures/{name}.{ending}")
                _put(part / names[-1], data)
    return tuple(folder / name for name in names)


def _built(
    run_dir: Path,
) -> tuple[Page, dict[str, Table], dict[str, Picture], dict[str, Any] | None]:
    if found := load_partitions(run_dir):
        tables = partitions_tables(*found)
        drawn = partitions_figures(found[0])
        pictures = {picture.name: picture for picture in drawn}
        return partitions_page(found[0], tables, drawn), tables, pictures, None
    result = load_result(run_dir)
    contrast = load_contrast(run_dir)
    common = leaves_tables() | (contrast_tables(contrast) if contrast else {})
    if isinstance(result, Comparison):
        test = load_locked_test(run_dir, result)
        tables = comparison_tables(result) | (locked_test_tables(test) if test else {}) | common
        drawn = [
            figures.trajectories(result),
            *weights_by_round(comparison_said(result), list(result.sites)),
        ]
        if result.has_site_effects:
            drawn.append(figures.site_effects(result))
        pictures = {picture.name: picture for picture in drawn}
        page = comparison_page(result, tables, pictures, test)
        return page, tables, pictures, comparison_summary(result, test, contrast)
    run, config = result
    tables = run_tables(run, config) | common
    drawn = [figures.run_scores(run), *weights_by_round(run_said(run), list(run.sites))]
    pictures = {picture.name: picture for picture in drawn}
    return run_page(run, config, tables, pictures), tables, pictures, None


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
