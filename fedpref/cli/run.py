"""`fedpref run` and `fedpref demo`: a whole federation, simulated on this machine."""

import os
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpref.cli.summary import print_summary
from fedpref.config import RunConfig, load_config
from fedpref.errors import ConfigError, RoundError
from fedpref.federation.progress import LOG_MARK
from fedpref.launch import LocalFlower, Scalar

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
        int | None, typer.Option("--nodes", min=1, help="SuperNodes to simulate, one a site.")
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
    config = load_config(_merged(profile, settings or []))
    simulate(config, app=app, machine=machine, nodes=nodes, verbose=verbose, as_json=as_json)


def demo(
    seed: Annotated[int | None, typer.Option(help="The training seed.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's and Ray's log as well.")
    ] = False,
) -> None:
    """Run the whole method on bundled synthetic reports with a bundled tiny model."""
    from fedpref.demo.sites import ensure_demo_sites  # noqa: PLC0415  (a torch-free CLI start)

    console.print("[bold]FedPref demo[/] — synthetic reports, a tiny model, six simulated sites")
    console.print("Preparing the sites: reports, teachers' candidates, preference pairs …")
    folder = ensure_demo_sites()
    console.print(f"Sites: {folder}")
    # The folder by name: "demo" would be looked up anew in each round, by the content of the code.
    values: dict[str, Scalar] = {"sites": str(folder)}
    config = load_config(values if seed is None else values | {"seed": seed})
    simulate(config, app=Path(), machine="cpu", nodes=None, verbose=verbose, as_json=False)


def simulate(
    config: RunConfig,
    *,
    app: Path,
    machine: str,
    nodes: int | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the app under a Flower of its own; RoundError unless the run ended complete."""
    federation = _simulation(app / "federation.toml", machine)
    if nodes is not None:
        federation["num-supernodes"] = nodes
    flat = config.to_flat()
    if config.resume:
        run_dir = Path(config.resume).resolve()
        flat["resume"] = str(run_dir)
    else:
        run_id = config.run_id or time.strftime("%Y%m%d-%H%M%S-") + config.digest[:8]
        run_dir = Path(config.runs_dir).resolve() / run_id
        flat |= {"runs-dir": str(run_dir.parent), "run-id": run_id}
    if config.sites != "demo":
        flat["sites"] = str(Path(config.sites).resolve())
    for key in ("model.path", "ontology"):
        # A path is meant from here; the SuperLink and Ray's workers have other working folders.
        if flat[key] and Path(str(flat[key])).exists():
            flat[key] = str(Path(str(flat[key])).resolve())
    home = Path(os.environ.get("FEDPREF_HOME", ".fedpref")) / "flower"
    notes = Console(stderr=True, highlight=False) if as_json else console
    notes.print(f"Starting Flower with {federation['num-supernodes']} SuperNodes …")
    with LocalFlower(home, app=app) as flower:
        flower_run = flower.submit(flat, federation)
        last = ""
        for line in flower.follow(flower_run):
            mark = line.find(LOG_MARK)
            if mark >= 0:
                notes.print(line[mark + len(LOG_MARK) :].rstrip(), markup=False)
            elif verbose:
                notes.print(line.rstrip(), markup=False, style="dim")
            last = line if line.strip() else last
        status, details = flower.wait(flower_run)
    if status != "finished:completed":
        raise RoundError(
            f"the run ended as {status}: {details or last.strip() or 'no details'}",
            fix=f"--verbose shows the whole log; resume with --set 'resume=\"{run_dir}\"'",
        )
    print_summary(run_dir, as_json=as_json)


def _merged(profile: Path | None, settings: list[str]) -> dict[str, Scalar]:
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


def _simulation(path: Path, machine: str) -> dict[str, Scalar]:
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
