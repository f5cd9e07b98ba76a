"""`fedpref audit`: how unequal the sites are, in size and in case mix."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.sites import JsonOption, site_paths
from fedpref.data import SiteDirectory
from fedpref.errors import DataError
from fedpref.evaluation.noniid import (
    COHORTS,
    PERMUTATIONS,
    SEED,
    NonIidAudit,
    deployed_audit,
    simulated_audit,
)
from fedpref.evaluation.site_cohorts import (
    label_names,
    merge_cells,
    read_cohorts,
    read_told,
    told_cells,
)
from fedpref.task import ONTOLOGY, Ontology, load_ontology


def audit(
    sites: Annotated[
        list[Path],
        typer.Argument(
            metavar="SITE…",
            help="Folders of sites, site directories, or the JSON files of a deployment's sites.",
        ),
    ],
    deployment: Annotated[
        bool,
        typer.Option("--deployment", help="Print only what each site's policy lets out."),
    ] = False,
    permutations: Annotated[int, typer.Option(min=1, help="Number of permutations.")] = (
        PERMUTATIONS
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = SEED,
    ontology: Annotated[
        Path | None, typer.Option(help="Another ontology's TOML file, if the task is not ours.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show support, case-mix divergence against chance, and prevalence by site.

    In a deployment, each site runs this with --deployment --json and hands over the output; called
    with these files, the command gives divergence and prevalences of all. Permutations need rows.
    """
    files = [path for path in sites if path.is_file()]
    folders = [path for path in sites if path not in files]
    names = load_ontology(ontology) if ontology else ONTOLOGY
    loaded = [SiteDirectory.load(path, names) for path in site_paths(folders)]
    if files or deployment:
        result = _deployed(files, loaded, names)
    else:
        result = simulated_audit(
            label_names(names),
            read_cohorts(loaded),
            synthetic=any(site.info.synthetic for site in loaded),
            permutations=permutations,
            seed=seed,
        )
    value = result.to_dict()
    if as_json:
        typer.echo(json.dumps(value))
        return
    print_audit(value)


def _deployed(files: list[Path], loaded: list[SiteDirectory], ontology: Ontology) -> NonIidAudit:
    told = {path: read_told(path) for path in files}
    first = None if loaded or not told else next(iter(told.values()))
    labels = label_names(ontology) if first is None else tuple(first.labels)
    for path, part in told.items():
        if tuple(part.labels) != labels:
            raise DataError(
                f"the labels differ: {', '.join(part.labels)} instead of {', '.join(labels)}",
                file=path,
                key="labels",
                fix="use one ontology at all sites, or name it with --ontology",
            )
    merged = merge_cells(
        [
            *((path, part.cells()) for path, part in told.items()),
            *((site.path, told_cells(site)) for site in loaded),
        ]
    )
    synthetic = [*(p.synthetic for p in told.values()), *(s.info.synthetic for s in loaded)]
    cohorts = {name: merged[name] for name in COHORTS if name in merged}
    return deployed_audit(labels, cohorts, synthetic=any(synthetic))


def print_audit(value: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the tables of an audit, given as its JSON value."""
    console = console or Console(highlight=False)
    if value["synthetic"]:
        console.print("[bold yellow]Synthetic demo data: no claim about medicine.[/]")
    console.print(support_table(value))
    console.print(divergence_table(value))
    if any(cohort["divergence_labels"] < len(value["labels"]) for cohort in value["cohorts"]):
        console.print("A divergence over fewer labels compares with no other one.", style="yellow")
    for cohort in value["cohorts"]:
        console.print(prevalence_table(value, cohort))
    if value["mode"] == "deployment":
        console.print("Permutations need pooled rows: a deployment has no p value.")
        console.print("* withheld, or a site without rows")
    elif len(value["cohorts"]) < len(COHORTS):
        console.print("No site has pairs yet: `fedpref teach`, then `fedpref pairs`.")


def support_table(value: Mapping[str, Any]) -> Table:
    """Return one row a site: its short name, reports, positive ones and pairs, train and dev."""
    deployed = value["mode"] == "deployment"
    table = _table("Support" if deployed else "Support (positive: with any disease)")
    table.add_column("")
    table.add_column("site", overflow="fold")
    keys = []
    for split in ("train", "dev"):
        columns = {split: "reports", "positive": "reports_positive", "pairs": "pairs"}
        for title, key in columns.items():
            if not (deployed and title == "positive"):
                table.add_column(title, justify="right")
                keys.append(f"{split}_{key}")
    missing = "*" if deployed else "–"
    for short, row in zip(_short(value), value["support"], strict=True):
        cells = (_count(row[key], missing) for key in keys)
        table.add_row(short, escape(row["site"]), *cells)
    table.add_section()
    totals = []
    for key in keys:
        known = [row[key] for row in value["support"] if row[key] is not None]
        totals.append(_count(sum(known) if known else None, missing))
    table.add_row("", "all", *totals)
    return table


def divergence_table(value: Mapping[str, Any]) -> Table:
    """Return one row a cohort: observed divergence, and against chance if rows are pooled."""
    table = _table("Case-mix divergence (percentage points)")
    table.add_column("cohort")
    for title in ("rows", "labels", "observed D"):
        table.add_column(title, justify="right")
    simulated = value["mode"] == "simulation"
    for title in ("null 95th", "ratio", "p") if simulated else ():
        table.add_column(title, justify="right")
    for cohort in value["cohorts"]:
        cells = [
            f"{cohort['rows']:,}",
            str(cohort["divergence_labels"]),
            _points(cohort["divergence"]),
        ]
        if simulated:
            ratio, p = cohort["ratio"], cohort["p_value"]
            cells += [
                _points(cohort["null_95"]),
                "–" if ratio is None else f"{ratio:.2f}",
                "–" if p is None else f"{p:.4f}",
            ]
        table.add_row(_title(cohort), *cells)
    return table


def prevalence_table(value: Mapping[str, Any], cohort: Mapping[str, Any]) -> Table:
    """Return one row a label: its share of the cohort's rows at every site and at all."""
    table = _table(f"Prevalence (%), {_title(cohort)}")
    table.add_column("label")
    for short in _short(value):
        table.add_column(short, justify="right")
    table.add_column("all", justify="right")
    missing = "*" if value["mode"] == "deployment" else "–"
    for number, label in enumerate(value["labels"]):
        # A site that handed over no such cohort withholds it.
        at_sites = [cohort["prevalence"].get(site) for site in value["sites"]]
        shares = [None if shares is None else shares[number] for shares in at_sites]
        table.add_row(
            escape(label),
            *(_percent(share, missing) for share in (*shares, cohort["overall"][number])),
        )
    return table


def _short(value: Mapping[str, Any]) -> list[str]:
    """Return S0, S1, …: narrow, and the number is the simulated site's partition id."""
    return [f"S{number}" for number in range(len(value["sites"]))]


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE)


def _title(cohort: Mapping[str, Any]) -> str:
    name: str = cohort["cohort"]
    return name.replace("_", " ")


def _count(value: int | None, missing: str) -> str:
    return missing if value is None else f"{value:,}"


def _points(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _percent(value: float | None, missing: str) -> str:
    return missing if value is None else f"{100 * value:.1f}"
