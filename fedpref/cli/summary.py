"""`fedpref summary`: what a run came to, as tables for people or JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.tables import warn_of_synthetic
from fedpref.errors import RoundError
from fedpref.report.text import percent

Record = Mapping[str, Any]

_MEGABYTE = 1e6


def summary(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, such as runs/<id>.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show the rounds of a complete run: scores, pairs, bytes and seconds."""
    print_summary(run_dir, as_json=as_json)


def print_summary(run_dir: Path, *, as_json: bool = False) -> None:
    """Print a complete run; RoundError if the run has not been completed."""
    result = read_summary(run_dir)
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        return
    typer.echo()
    print_rounds(result)
    # On a line of its own, so that a narrow terminal does not break it and it can be copied.
    typer.echo("Run directory:")
    typer.echo(str(run_dir))


def print_rounds(result: Record, heading: str = "") -> None:
    """Print the rounds and the sites of a complete run, and who was left out of it."""
    console = Console(highlight=False)
    if result["synthetic"]:
        warn_of_synthetic(console)
    if heading:
        console.print(heading, markup=False, style="bold")
    console.print(rounds_table(result["rounds"]))
    console.print(sites_table(result["rounds"]))
    for record in result["rounds"]:
        for half, refused in record["refused"].items():
            for site, reason in refused.items():
                console.print(
                    f"round {record['round']}, {half}: site {site} was left out: {reason}",
                    style="yellow",
                    markup=False,
                )


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Return `summary.json` of a complete run; RoundError says what is missing."""
    path = run_dir / "summary.json"
    if (run_dir / "experiment.json").exists():
        raise RoundError(
            "this is a comparison, not a run",
            fix="`fedpref report` shows it; its runs are the folders in runs/",
            file=run_dir,
        )
    if not (run_dir / "config.json").exists():
        raise RoundError("there is no run in this folder", file=run_dir, fix="correct the path")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        result = None
    if not isinstance(result, dict) or result.get("complete") is not True:
        raise RoundError(
            "the run is not complete",
            file=path,
            fix=f"resume it: fedpref run --set resume={run_dir}",
        )
    return result


def rounds_table(rounds: Sequence[Record]) -> Table:
    """Return one row a round: client mean, worst site, traffic, seconds."""
    table = Table(title="Rounds (loc+dis F1 on dev reports, %)", title_justify="left")
    for column in ("round", "stage", "client mean", "worst site", "MB down", "MB up", "seconds"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for record in rounds:
        traffic = record["bytes"]
        table.add_row(
            str(record["round"]),
            record["stage"].upper(),
            percent(record["client_mean"]),
            percent(record["worst_site"]),
            f"{traffic['down'] / _MEGABYTE:.1f}",
            f"{traffic['up'] / _MEGABYTE:.1f}",
            f"{record['seconds']['total']:.1f}",
        )
    if len(rounds) > 1:
        table.add_section()
        table.add_row(
            "all",
            "",
            "",
            "",
            *(f"{sum(r['bytes'][way] for r in rounds) / _MEGABYTE:.1f}" for way in ("down", "up")),
            f"{sum(r['seconds']['total'] for r in rounds):.1f}",
        )
    return table


def sites_table(rounds: Sequence[Record]) -> Table:
    """Return one row a site: trained pairs and dev reports, then its F1 after each round."""
    table = Table(title="Sites (loc+dis F1 on the site's dev reports, %)", title_justify="left")
    table.add_column("site")
    table.add_column("pairs", justify="right")
    table.add_column("dev reports", justify="right")
    for record in rounds:
        table.add_column(f"round {record['round']}", justify="right")
    for site in rounds[-1]["sites"]:
        entries = [record["sites"].get(site, {}) for record in rounds]
        counts = next((e["counts"] for e in reversed(entries) if e.get("counts")), None)
        pairs = {entry.get("pairs") for entry in entries}
        table.add_row(
            site,
            # Normally the same in each round; a list where a site was left out of some.
            " / ".join("–" if p is None else str(p) for p in _ordered(pairs, entries)),
            "–" if counts is None else str(counts["reports"]),
            *(percent(entry.get("location_disease_f1")) for entry in entries),
        )
    return table


def _ordered(pairs: set[Any], entries: Sequence[Record]) -> list[Any]:
    return [next(iter(pairs))] if len(pairs) == 1 else [entry.get("pairs") for entry in entries]
