"""`fedpref site`: look at site directories."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.sites import JsonOption, SitesArgument, site_paths
from fedpref.data import SPLITS, SiteDirectory, check_site
from fedpref.errors import DataError, FedPrefError, raise_all
from fedpref.task import ontology_of

app = typer.Typer(no_args_is_help=True, help="Look at site directories.")


@app.callback()
def _group() -> None:
    """Keep `site check` a subcommand although it is the only one."""


@app.command()
def check(
    sites: SitesArgument,
    ontology: Annotated[
        Path | None, typer.Option(help="Another ontology's TOML file, if the task is not ours.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check site directories; list everything that is wrong, or what they hold."""
    names = ontology_of(ontology)
    rows: list[dict[str, object]] = []
    problems: list[FedPrefError] = []
    paths: list[Path] = []
    for given in sites:
        try:
            paths += site_paths([given])
        except FedPrefError as error:
            problems.append(error)
    for path in dict.fromkeys(paths):
        found = check_site(path, names)
        problems += found
        if not found:
            site = SiteDirectory.load(path, names)
            splits = Counter(report.split for report in site.reports)
            masked = sum(bool(a.ignore) for a in site.annotations.values())
            rows.append(
                {
                    "site": site.name,
                    **{split: splits[split] for split in SPLITS},
                    "patients": len({report.patient_id for report in site.reports}),
                    "masked": masked,
                    "synthetic": site.info.synthetic,
                }
            )
    seen = [str(row["site"]) for row in rows]
    problems += [
        DataError(
            f"{seen.count(name)} of these sites have this name",
            why="a federation tells its sites apart by their names",
            fix="give every site.toml a name of its own",
            site=name,
        )
        for name in sorted({name for name in seen if seen.count(name) > 1})
    ]
    if as_json:
        typer.echo(json.dumps({"sites": rows, "problems": [str(p) for p in problems]}))
        if problems:
            raise typer.Exit(1)
        return
    if rows:
        table = Table(title="Reports a site")
        table.add_column("site", no_wrap=True)
        for column in ("train", "dev", "test", "diag.", "patients", "masked"):
            table.add_column(column, justify="right")
        table.add_column("synthetic")
        for row in rows:
            *values, synthetic = row.values()
            table.add_row(*map(str, values), "yes" if synthetic else "")
        Console(highlight=False).print(table)
    raise_all(problems)
