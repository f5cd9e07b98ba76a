"""`fedpref contrast`: do the candidates of a pool differ enough to learn from?"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpref.cli.sites import JsonOption, SitesArgument, site_paths
from fedpref.cli.tables import print_tables
from fedpref.data import SiteDirectory
from fedpref.errors import DataError
from fedpref.evaluation.candidate_pools import (
    DRAWS,
    SEED,
    available_candidates,
    contrast_pools,
    parse_pool,
)
from fedpref.files import atomic_write
from fedpref.preference.pairs import MIN_MARGIN
from fedpref.report import write_report
from fedpref.report.contrast import CONTRAST, Contrast, contrast_tables
from fedpref.report.result import load_result
from fedpref.task import ontology_of


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
    into: Annotated[
        Path | None,
        typer.Option(help="The folder of a run or comparison whose report is to show this."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show oracle headroom, usable-pair coverage and identical answers of pools of candidates.

    The oracle takes the best candidate of every report. Repeated samples of one model need one
    candidates' file a sample, such as target-1 and target-2; a label can say how they were drawn:
    --pool "5 samples, T 0.7=target-*".
    """
    names = ontology_of(ontology)
    if into is not None:
        load_result(into)  # what is no complete run or comparison is refused before the work
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
    page = None
    if into is not None:
        atomic_write(into / CONTRAST, json.dumps(value, indent=1) + "\n")
        page = write_report(into)[0]
    if as_json:
        typer.echo(json.dumps(value))
        return
    console = Console(highlight=False)
    if value["synthetic"]:
        console.print("[bold yellow]Synthetic demo data: no claim about medicine.[/]")
    print_tables(console, contrast_tables(Contrast.model_validate_json(json.dumps(value))).values())
    if page:
        # On a line of its own, so that a narrow terminal does not break it and it can be copied.
        typer.echo(f"The report shows it:\n{page}")
