"""`fedpref compare` and `fedpref demo`: the arms FedPref, Local and Central over the same sites."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.run import check_places, merged_settings, simulation
from fedpref.cli.summary import print_rounds, read_summary
from fedpref.config import RunConfig, load_config
from fedpref.errors import ConfigError, ResumeError
from fedpref.evaluation.noniid import simulated_audit
from fedpref.evaluation.site_cohorts import label_names, read_cohorts
from fedpref.experiment.collect import check_agreements, collect
from fedpref.experiment.lanes import run_jobs
from fedpref.experiment.plan import ARMS, Experiment, experiment_id, open_experiment
from fedpref.experiment.results import compare_arms
from fedpref.federation.strategies import make_strategy
from fedpref.files import atomic_write, fedpref_home, try_lock
from fedpref.launch import Scalar
from fedpref.report import write_report
from fedpref.report.comparison import ARM_TITLES
from fedpref.report.text import percent, points

SEEDS = "20260713,20260714,20260715"
COMPARISON_FILE = "comparison.json"

console = Console(highlight=False)

VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show Flower's and Ray's log as well.")
]


def compare(
    profile: Annotated[
        Path | None, typer.Argument(help="A run-config TOML, such as profiles/openi-tiny.toml.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="The training seeds, separated by commas.")] = SEEDS,
    into: Annotated[
        Path | None,
        typer.Option(help="The folder of the comparison. (Default: named by what is compared)"),
    ] = None,
    machine: Annotated[
        str, typer.Option("--on", help="A table of federation.toml: cpu or gpu.")
    ] = "cpu",
    app: Annotated[
        Path, typer.Option("--app", help="The folder with FedPref's pyproject.")
    ] = Path(),
    verbose: VerboseOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON, nothing else on stdout.")
    ] = False,
) -> None:
    """Run FedPref, Local and Central with each seed and compare them.

    The same command goes on where it was stopped, and does nothing twice. Site roots are shared:
    Local starts from the very roots that FedPref averages.
    """
    config = load_config(with_demo_sites(merged_settings(profile, settings or [])))
    make_strategy(config)  # what is wrong with it is said before Flower starts
    run_comparison(
        config,
        _seeds(seeds),
        into=into,
        app=app,
        machine=machine,
        verbose=verbose,
        as_json=as_json,
    )


def demo(
    seed: Annotated[int, typer.Option(help="The training seed.")] = RunConfig().seed,
    verbose: VerboseOption = False,
) -> None:
    """Run the whole method on bundled synthetic reports with a bundled tiny model."""
    console.print("[bold]FedPref demo[/] — synthetic reports, a tiny model, six simulated sites")
    console.print("Preparing the sites: reports, teachers' candidates, preference pairs …")
    config = load_config(with_demo_sites({"seed": seed}))
    console.print(f"Sites: {escape(config.sites)}")
    run_comparison(
        config, [seed], into=None, app=Path(), machine="cpu", verbose=verbose, as_json=False
    )


def with_demo_sites(values: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings with the demo's sites as a folder, if they are meant.

    "demo" would be looked up anew in each round, by the content of the code.
    """
    from fedpref.demo.sites import ensure_demo_sites  # noqa: PLC0415  (a torch-free CLI start)

    if values.get("sites", "demo") != "demo":
        return values
    return values | {"sites": str(ensure_demo_sites())}


def run_comparison(
    config: RunConfig,
    seeds: Sequence[int],
    *,
    into: Path | None,
    app: Path,
    machine: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run what is still to be run, write `comparison.json` and the report, print the tables."""
    notes = Console(stderr=True, highlight=False) if as_json else console
    federation = simulation(app / "federation.toml", machine)
    check_places(config)
    folder = (into or Path(config.runs_dir) / experiment_id(config, seeds)).absolute()
    with only_one(folder):
        comparison, page = _run(
            open_experiment(folder, config, seeds), app, federation, notes, verbose=verbose
        )
    if as_json:
        typer.echo(json.dumps(comparison, ensure_ascii=False))
        return
    first = comparison["runs"][0]
    console.print()
    print_rounds(read_summary(folder / first["path"]), heading=f"FedPref, seed {first['seed']}")
    print_comparison(comparison)
    # Paths on lines of their own, so that a narrow terminal does not break them.
    typer.echo(f"Run directory:\n{folder}\nReport, for a browser:\n{page}")


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder of a comparison; ResumeError if another process holds it."""
    # Beside it, so that what is refused before any work leaves no folder.
    path = folder.with_name(f".{folder.name}.lock")
    lock = try_lock(path)
    if lock is None:
        raise ResumeError(
            "another process is running this comparison",
            why="two would write the same runs",
            fix="wait for it, or compare into another folder",
            file=folder,
        )
    with lock:
        try:
            yield
        finally:
            if not folder.exists():
                path.unlink(missing_ok=True)


def _run(
    experiment: Experiment,
    app: Path,
    federation: Mapping[str, Scalar],
    notes: Console,
    *,
    verbose: bool,
) -> tuple[dict[str, Any], Path]:
    """Run the open jobs, compare, write; return the comparison and the report's page."""
    folder, seeds, jobs = experiment.folder, experiment.seeds, experiment.jobs()
    notes.print(f"{len(jobs)} runs ({', '.join(ARMS)}; {_seeds_text(len(seeds))}) in")
    notes.print(str(folder), markup=False, soft_wrap=True)
    run_jobs(
        experiment,
        home=fedpref_home(),
        app=app,
        federation=federation,
        # One GPU takes one client at a time, whatever it belongs to.
        parallel=not federation.get("client-resources-num-gpus"),
        say=lambda line: notes.print(line, markup=False, soft_wrap=True),
        on_log=lambda line: notes.print(line, markup=False, style="dim") if verbose else None,
    )
    notes.print("Comparing …")
    comparison = _comparison(experiment)
    atomic_write(folder / COMPARISON_FILE, json.dumps(comparison, indent=1) + "\n")
    return comparison, write_report(folder)[0]


def _comparison(experiment: Experiment) -> dict[str, Any]:
    """Return the whole content of `comparison.json` from the complete runs."""
    jobs = experiment.jobs()
    check_agreements(jobs)
    results = {arm: [collect(experiment, job) for job in jobs if job.arm == arm] for arm in ARMS}
    summary = read_summary(jobs[0].run_dir)
    last = summary["rounds"][-1]["sites"]
    config = experiment.config.to_flat()
    return {
        "kind": "comparison",
        "complete": True,
        "run": experiment.folder.name,
        "synthetic": summary["synthetic"],
        "digest": experiment.config.digest,
        "config": {key: value for key, value in config.items() if key != "seed"},
        "seeds": list(experiment.seeds),
        "sites": {
            name: {
                "pairs": entry["pairs"],
                "dev_reports": None if entry["counts"] is None else entry["counts"]["reports"],
                "dev_pairs": None if entry["counts"] is None else entry["counts"]["pairs"],
            }
            for name, entry in last.items()
        },
        **compare_arms(results),
        "audit": simulated_audit(
            label_names(experiment.sites[0].ontology),
            read_cohorts(experiment.sites),
            synthetic=summary["synthetic"],
        ).to_dict(),
        "runs": [
            {
                "arm": job.arm,
                "seed": job.seed,
                "path": str(job.run_dir.relative_to(experiment.folder)),
                "digest": job.config.digest,
            }
            for job in jobs
        ],
        "versions": summary["versions"],
    }


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the arms at the selected round and the effects between them."""
    selected = comparison["selected_round"]
    table = Table(
        title=f"Arms at round {selected}, mean over {_seeds_text(len(comparison['seeds']))} (%)",
        title_justify="left",
    )
    table.add_column("arm")
    columns = {
        "client mean": "client_mean",
        "worst site": "worst_site",
        "disease F1": "disease_client_mean",
        "pairs right": "preference_accuracy",
        "valid JSON": "projection_rate",
        "false alarms": "false_positive_rate",
    }
    for column in columns:
        table.add_column(column, justify="right")
    for arm, result in comparison["arms"].items():
        row = result["rounds"][selected]
        table.add_row(ARM_TITLES[arm], *(percent(row[key]) for key in columns.values()))
    console.print(table)
    effects = Table(
        title="Effects in points of loc+dis F1, paired 95 % interval (patients within sites)",
        title_justify="left",
    )
    effects.add_column("effect")
    for column in ("client mean", "worst site"):
        effects.add_column(column, justify="right")
    cells = {
        (e["a"], e["b"], e["statistic"]): e
        for e in comparison["effects"]
        if e["round"] == selected and "statistic" in e
    }
    for a, b in dict.fromkeys((a, b) for a, b, _ in cells):
        effects.add_row(
            f"{ARM_TITLES[a]} − {ARM_TITLES[b]}",
            *(effect_text(cells[a, b, s]) for s in ("client_mean", "worst_site")),
        )
    console.print(effects)
    for note in comparison["notes"]:
        console.print(note, style="yellow", markup=False)


def effect_text(effect: Mapping[str, Any]) -> str:
    """Return an effect in points with its interval, or with the reason why there is none."""
    point = points(effect["effect"])
    if effect["effect"] is None:
        return point
    if effect["degenerate"]:
        return f"{point} (no interval: {effect['degenerate']})"
    return f"{point} ({points(effect['low'])} … {points(effect['high'])})"


def _seeds_text(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds {text!r} is no list of whole numbers", fix="write, for example, 1,2,3"
        ) from None
