"""`fedpref teach`: let teachers propose an extraction for every train and dev report."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedpref.cli.sites import JsonOption, SitesArgument, load_sites
from fedpref.preference.candidates import generate, pair_reports
from fedpref.preference.teachers.choice import make_teachers
from fedpref.preference.teachers.command import TIMEOUT, WORKERS

TeachersOption = Annotated[
    str,
    typer.Option(
        "--teachers",
        help="rules, rules:NAME or command:[NAME=]COMMAND LINE, separated by commas. Their order "
        "breaks ties.",
    ),
]


def teach(
    sites: SitesArgument,
    teachers: TeachersOption = "rules",
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a command may take for one report.")
    ] = TIMEOUT,
    workers: Annotated[
        int, typer.Option(min=1, help="Commands that run at the same time.")
    ] = WORKERS,
    as_json: JsonOption = False,
) -> None:
    """Write candidates/TEACHER.jsonl at each site; what is up to date is kept.

    Teachers see report texts, never annotations. `rules` are four demonstration teachers that need
    no model.
    """
    chosen = make_teachers(teachers, timeout=timeout, workers=workers)
    loaded = load_sites(sites)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    results = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for site in loaded:
            for teacher in chosen:
                task = progress.add_task(
                    f"{site.name} · {teacher.name}", total=len(pair_reports(site))
                )
                done = generate(
                    site,
                    teacher,
                    progress=lambda count, task=task: progress.advance(task, count),  # type: ignore[misc]
                )
                results.append({"site": site.name, **asdict(done)})
                progress.remove_task(task)
    if as_json:
        typer.echo(json.dumps(results))
        return
    table = Table(title="Candidates")
    for name in ("site", "teacher"):
        table.add_column(name)
    for name in ("candidates", "already there"):
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(row["site"], row["teacher"], str(row["total"]), str(row["reused"]))
    Console(highlight=False).print(table)
