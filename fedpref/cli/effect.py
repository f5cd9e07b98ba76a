"""`fedpref effect`: the difference of two arms with its interval, from the sites' own draws."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.comparison import effect_text
from fedpref.cli.run import merged_settings, simulation
from fedpref.cli.sites import JsonOption
from fedpref.cli.tables import warn_of_synthetic
from fedpref.config import load_config
from fedpref.data import site_directories
from fedpref.errors import ConfigError, DataError
from fedpref.federation.effect import RESULT_FILE
from fedpref.federation.effect_runs import SEPARATOR, read_arms
from fedpref.files import fedpref_home
from fedpref.launch import LocalFlower
from fedpref.report.text import percent

Record = Mapping[str, Any]

_ROWS = (("client mean", "client_mean"), ("worst site", "worst_site"), ("global", "global"))


def effect(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Two arms: a run directory each, or several (seeds) with commas between them, "
            "with @ROUND at the end if it is not the last one. Or one RESULT to show again.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated."),
    ] = None,
    machine: Annotated[
        str, typer.Option("--on", help="A table of federation.toml: cpu or gpu.")
    ] = "cpu",
    app: Annotated[
        Path, typer.Option("--app", help="The folder with FedPref's pyproject.")
    ] = Path(),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's and Ray's log as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask simulated sites for the effect of arm A over arm B; no report or answer leaves a site.

    An arm is a run directory, or several (seeds) with commas between them, with @ROUND at the end
    if it is not the last round. Each site resamples its own patients with a secret of its own and
    sends the totals of the draws.

    A real federation is asked with `flwr run` (docs/deployment.md). One argument, the folder of a
    result, shows it again.
    """
    if len(arms) > 2:
        raise ConfigError(
            f"{len(arms)} arguments were given",
            fix="name two arms; the runs of one arm have commas between them",
        )
    if len(arms) == 2:
        folder = _simulate(arms, settings or [], machine, app, verbose=verbose, as_json=as_json)
    else:
        folder = Path(arms[0])
    path = folder / RESULT_FILE
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(
            "there is no measured effect in this folder",
            fix="name two arms, A and B, to measure one",
            file=path,
        ) from None
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        return
    try:
        print_effect(result)
    except (KeyError, TypeError, IndexError, AttributeError):
        raise DataError(
            "this is no measured effect, or it was changed",
            fix="name the two arms, to measure it again",
            file=path,
        ) from None
    # On a line of its own, so that a narrow terminal does not break it and it can be copied.
    typer.echo(f"Result:\n{path}")


def _simulate(
    arms: list[str],
    settings: list[str],
    machine: str,
    app: Path,
    *,
    verbose: bool,
    as_json: bool,
) -> Path:
    found = read_arms(SEPARATOR.join(arms))
    first = found.a[0]
    config = load_config(
        {
            **first.config.to_flat(),
            "runs-dir": str(first.path.parent),
            "run-id": time.strftime("%Y%m%d-%H%M%S-effect-") + found.question().digest[:8],
            "resume": "",
            **merged_settings(None, settings),
            "effect": found.to_text(),
        }
    )
    federation = simulation(app / "federation.toml", machine)
    if config.sites != "demo":
        federation["num-supernodes"] = len(site_directories(config.sites))
    notes = Console(stderr=True, highlight=False) if as_json else Console(highlight=False)
    notes.print(f"Starting Flower with {federation['num-supernodes']} SuperNodes …")
    with LocalFlower(fedpref_home(), app=app) as flower:
        return flower.run(
            config,
            federation,
            on_progress=lambda line: notes.print(line, markup=False),
            on_log=lambda line: notes.print(line, markup=False, style="dim") if verbose else None,
        )


def print_effect(result: Record) -> None:
    """Print the arms, the effect over all sites and at each, and who sent no totals."""
    console = Console(highlight=False)
    if result["synthetic"]:
        warn_of_synthetic(console)
    for arm in ("a", "b"):
        runs = result[arm]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        console.print(
            f"{arm}: {', '.join(dict.fromkeys(run['strategy'] for run in runs))}, round "
            f"{runs[0]['round']}, {'seed' if len(runs) == 1 else 'seeds'} {seeds}",
            markup=False,
        )
    sent, sites = result["answers"]["totals"], result["sites"]
    table = Table(
        title=f"a − b: loc+dis F1 in points (95 % interval), {sent} of {len(sites)} sites",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("a", justify="right")
    table.add_column("b", justify="right")
    table.add_column("a − b")
    for title, name in _ROWS:
        _add(table, title, result["effects"][name])
    table.add_section()
    for site, entry in sites.items():
        if entry["effect"] is not None:
            _add(table, site, entry["effect"])
    console.print(table)
    for site, entry in sites.items():
        if entry["effect"] is None:
            console.print(
                f"site {site}: {entry['answer']}: {entry['reason']}", style="yellow", markup=False
            )
    absent = "" if sent == len(sites) else " Sites without totals are in none of these numbers."
    console.print(
        f"{result['draws']:,} draws of patients within sites, by each site for itself.{absent}",
        style="dim",
    )


def _add(table: Table, title: str, effect: Record) -> None:
    told = effect_text(effect) if effect["effect"] is not None else f"none: {effect['degenerate']}"
    table.add_row(title, *(percent(effect[arm]) for arm in ("a", "b")), told)
