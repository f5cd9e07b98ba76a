"""`fedpref contrast`: do the candidates of a pool differ enough to learn from?"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.sites import JsonOption, SitesArgument, site_paths
from fedpref.data import SiteDirectory
from fedpref.errors import DataError
from fedpref.evaluation.candidate_pools import (
    DRAWS,
    SEED,
    available_candidates,
    contrast_pools,
    parse_pool,
)
from fedpref.preference.pairs import MIN_MARGIN
from fedpref.report.text import percent, points
from fedpref.task import ONTOLOGY, load_ontology


class Split(StrEnum):
    """The splits whose annotations may be looked at; the test split stays locked."""

    train = "train"
    dev = "dev"
    diagnostic = "diagnostic"


def contrast(
    sites: SitesArgument,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidates to look at together: NAME,NAME,… or LABEL=NAME,NAME,…; names are "
            "stems of candidates/*.jsonl, or patterns. May be repeated. (Default: all)"
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Reports to look at; never the test split.")] = (
        Split.dev
    ),
    baseline: Annotated[
        str | None,
        typer.Option(help="Candidates that headroom is over. (Default: a pool's best ones)"),
    ] = None,
    min_margin: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Smallest difference of composite scores.")
    ] = MIN_MARGIN,
    draws: Annotated[int, typer.Option(min=1, help="Draws of the bootstrap.")] = DRAWS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = SEED,
    ontology: Annotated[
        Path | None, typer.Option(help="Another ontology's TOML file, if the task is not ours.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show oracle headroom, usable-pair coverage and identical answers of pools of candidates.

    The oracle takes the best candidate of every report. Repeated samples of one model need one
    candidates' file a sample, such as target-1 and target-2; a label can say how they were drawn:
    --pool "5 samples, T 0.7=target-*".
    """
    names = load_ontology(ontology) if ontology else ONTOLOGY
    loaded = [SiteDirectory.load(path, names) for path in site_paths(sites)]
    available = available_candidates(loaded)
    if not available:
        raise DataError(
            "there are no candidates", file=loaded[0].candidates_dir, fix="run `fedpref teach`"
        )
    pools = [parse_pool(text, available) for text in pool or ["all=*"]]
    results = contrast_pools(
        loaded,
        pools,
        split=split.value,
        baseline=baseline,
        min_margin=min_margin,
        draws=draws,
        seed=seed,
    )
    value: dict[str, Any] = {
        "kind": "contrast",
        "synthetic": any(site.info.synthetic for site in loaded),
        "split": split.value,
        "sites": [site.name for site in loaded],
        "min_margin": min_margin,
        "draws": draws,
        "seed": seed,
        "pools": [result.to_dict() for result in results],
    }
    if as_json:
        typer.echo(json.dumps(value))
        return
    console = Console(highlight=False)
    if value["synthetic"]:
        console.print("[bold yellow]Synthetic demo data: no claim about medicine.[/]")
    console.print(contrast_table(value))
    console.print(candidates_table(value))
    for row in value["pools"]:
        if row["over_best"]["degenerate"]:
            console.print(
                f"{row['pool']}: no interval, because {row['over_best']['degenerate']}",
                style="yellow",
                markup=False,
            )


def contrast_table(value: Mapping[str, Any]) -> Table:
    """Return one column a pool: how much better its oracle is, and how much its answers differ."""
    pools: Sequence[Mapping[str, Any]] = value["pools"]
    title = f"Contrast, {value['split']} reports (loc+dis F1, %)"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("pool")
    for pool in pools:
        table.add_column(escape(pool["pool"]), justify="right", overflow="fold")
    rows = {
        "candidates": [str(len(p["candidates"])) for p in pools],
        "reports / patients": [f"{p['reports']:,} / {p['patients']:,}" for p in pools],
        "baseline": [escape(p["baseline"] or "–") for p in pools],
        "baseline F1": [percent(p["baseline_f1"]) for p in pools],
        "oracle F1": [percent(p["oracle_f1"]) for p in pools],
        "headroom (points)": [points(p["headroom"]) for p in pools],
        "usable pairs": [_share(p["usable"], p["coverage"]) for p in pools],
        "all parsed sets identical": [_share(p["identical"], p["identical_share"]) for p in pools],
        "best candidate": [escape(p["best"] or "–") for p in pools],
        "oracle − best (points)": [points(p["over_best"]["effect"]) for p in pools],
        "  95 % interval": [_interval(p["over_best"]) for p in pools],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def candidates_table(value: Mapping[str, Any]) -> Table:
    """Return one row a candidate of each pool: its F1 over all reports."""
    table = Table(title="Candidates (loc+dis F1, %)", title_justify="left", box=SIMPLE)
    table.add_column("pool")
    table.add_column("candidate")
    table.add_column("F1", justify="right")
    for pool in value["pools"]:
        for name, f1 in pool["f1"].items():
            table.add_row(escape(pool["pool"]), escape(name), percent(f1))
        table.add_section()
    return table


def _share(count: int, share: float | None) -> str:
    return str(count) if share is None else f"{count:,} ({100 * share:.1f} %)"


def _interval(effect: Mapping[str, Any]) -> str:
    low, high = effect["low"], effect["high"]
    return "–" if low is None or high is None else f"{100 * low:+.2f} … {100 * high:+.2f}"
