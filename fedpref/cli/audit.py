"""`fedpref audit`: how unequal the sites are, in size and in case mix."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpref.cli.sites import JsonOption, site_paths
from fedpref.cli.tables import print_tables
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
from fedpref.report.audit import audit_tables
from fedpref.report.result import Audit
from fedpref.task import Ontology, ontology_of


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
    names = ontology_of(ontology)
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


def print_audit(value: Mapping[str, Any]) -> None:
    """Print the tables of an audit, given as its JSON value."""
    console = Console(highlight=False)
    if value["synthetic"]:
        console.print("[bold yellow]Synthetic demo data: no claim about medicine.[/]")
    print_tables(console, audit_tables(Audit.model_validate_json(json.dumps(value))))
    if value["mode"] == "simulation" and len(value["cohorts"]) < len(COHORTS):
        console.print("No site has pairs yet: `fedpref teach`, then `fedpref pairs`.")
