"""`fedpref run`: a whole federation, simulated on this machine."""

import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpref.cli.summary import print_summary
from fedpref.config import RunConfig, load_config
from fedpref.data import SiteDirectory, site_directories
from fedpref.errors import ConfigError, FedPrefError, collected, of_site, raise_all
from fedpref.federation.participation import check_site_count
from fedpref.federation.strategies import check_enough_sites, make_strategy
from fedpref.files import fedpref_home
from fedpref.launch import LocalFlower, Scalar
from fedpref.preference import read_pairs
from fedpref.report import write_report
from fedpref.task import Ontology, ontology_of

console = Console(highlight=False)


def run(
    profile: Annotated[
        Path | None, typer.Argument(help="A run-config TOML, such as profiles/openi-tiny.toml.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated."),
    ] = None,
    machine: Annotated[
        str, typer.Option("--on", help="A table of federation.toml: cpu or gpu.")
    ] = "cpu",
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="SuperNodes to simulate. (Default: one a site)"),
    ] = None,
    app: Annotated[
        Path, typer.Option("--app", help="The folder with FedPref's pyproject.")
    ] = Path(),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's and Ray's log as well.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, nothing else on stdout.")
    ] = False,
) -> None:
    """Simulate a federation through Flower and print what came out."""
    config = load_config(merged_settings(profile, settings or []))
    federation = _checked(config, simulation(app / "federation.toml", machine), nodes)
    notes = Console(stderr=True, highlight=False) if as_json else console
    notes.print(f"Starting Flower with {federation['num-supernodes']} SuperNodes …")
    with LocalFlower(fedpref_home(), app=app) as flower:
        run_dir = flower.run(
            config,
            federation,
            on_progress=lambda line: notes.print(line, markup=False),
            on_log=lambda line: notes.print(line, markup=False, style="dim") if verbose else None,
        )
    page = write_report(run_dir)[0]
    print_summary(run_dir, as_json=as_json)
    if not as_json:
        typer.echo(f"Report, for a browser:\n{page}")


def _checked(
    config: RunConfig, federation: dict[str, Scalar], nodes: int | None
) -> dict[str, Scalar]:
    """Return the federation with its number of SuperNodes; raises what Flower would tell late."""
    problems: list[FedPrefError] = []
    strategy = collected(problems, lambda: make_strategy(config))
    sites = collected(problems, lambda: check_places(config))
    if nodes or sites:
        federation["num-supernodes"] = nodes or len(sites or [])
    number = int(federation["num-supernodes"])
    if sites is not None:
        collected(problems, lambda: check_site_count(config, number))
    # Whose data is no site's, or has no pairs yet, would be told by each SuperNode for itself.
    ontology = ontology_of(config.ontology)
    for path in sites or []:
        collected(problems, partial(_check_site, path, ontology))
    raise_all(problems)
    assert strategy is not None
    check_enough_sites(config, strategy, sites=number, with_pairs=number)
    return federation


def _check_site(path: Path, ontology: Ontology) -> None:
    with of_site(path.name):
        read_pairs(SiteDirectory.load(path, ontology))


def check_places(config: RunConfig) -> list[Path]:
    """Return the site directories of a run, none for the demo's; errors that Flower would delay.

    Raises ConfigError, or FedPrefErrors, if there is no site or no such model folder.
    """
    problems: list[FedPrefError] = []
    sites: list[Path] = []
    if config.sites != "demo":
        folder = Path(config.sites)
        sites = site_directories(folder) if folder.is_dir() else []
        if not sites:
            problems.append(
                ConfigError(
                    f"there is no site directory in {config.sites!r}",
                    fix="name a folder that holds site directories, each with a site.toml",
                    key="sites",
                )
            )
    model = config.model.path
    if model.startswith(("/", ".", "~")) and not Path(model).expanduser().is_dir():
        problems.append(
            ConfigError(
                f"there is no folder {model!r}",
                fix="give a folder with config.json, weights and tokenizer, or 'demo'",
                key="model.path",
            )
        )
    raise_all(problems)
    return sites


def merged_settings(profile: Path | None, settings: list[str]) -> dict[str, Scalar]:
    """Return the run config of a profile with `--set key=value` overrides; ConfigError if bad."""
    values: dict[str, Scalar] = {}
    if profile is not None:
        try:
            values |= _flat(tomllib.loads(profile.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(
                f"the profile cannot be read ({error.strerror})", file=profile
            ) from None
        except ValueError as error:
            raise ConfigError(f"the profile is not TOML: {error}", file=profile) from None
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(f"{setting!r} has no '='", fix="write --set key=value")
        values[key.strip()] = _literal(value.strip())
    return values


def _literal(text: str) -> Scalar:
    """Read a TOML value; a bare word is a string, so that no quotes inside quotes are needed."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def simulation(path: Path, machine: str) -> dict[str, Scalar]:
    """Return the table [simulation.<machine>] of federation.toml; ConfigError if there is none."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["simulation"]
    except OSError:
        raise ConfigError(
            "there is no federation.toml here",
            fix="run this in FedPref's repository, or name it with --app",
            file=path,
        ) from None
    except (ValueError, KeyError) as error:
        raise ConfigError(f"no table [simulation.…] can be read: {error}", file=path) from None
    if machine not in tables:
        raise ConfigError(
            f"--on {machine} is not a table of federation.toml",
            fix=f"use one of {', '.join(sorted(tables))}",
            file=path,
        )
    return dict(tables[machine])
