"""`fedpref report`: a run or a comparison as one page, tables and figures."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedpref.cli.sites import JsonOption
from fedpref.report import write_report


def report(
    run_dir: Annotated[
        Path, typer.Argument(help="The folder of a complete run or comparison, as runs/<id>.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Write report.html, tables (CSV, Markdown) and figures (PNG, SVG) into RUN_DIR/report.

    The page is one file that opens offline and can be mailed or printed.
    """
    files = write_report(run_dir)
    if as_json:
        typer.echo(
            json.dumps(
                {"page": str(files[0]), "files": [str(path) for path in files]}, ensure_ascii=False
            )
        )
        return
    Console(highlight=False).print(f"{len(files)} files. Open this one in a browser:")
    # On a line of its own, so that a narrow terminal does not break it and it can be copied.
    typer.echo(str(files[0]))
