"""`fedpref compare` and `fedpref demo`: arms or strategies over the same sites, and partitions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedpref.cli.comparison import print_comparison, print_partitions, seeds_text
from fedpref.cli.run import check_places, merged_settings, simulation
from fedpref.cli.summary import print_rounds, read_summary
from fedpref.config import RunConfig, load_config
from fedpref.errors import ConfigError, FedPrefError, ResumeError, collected, raise_all
from fedpref.experiment.arms import FEDPREF, Arm, matched_arms, strategy_arms
from fedpref.experiment.comparison import COMPARISON_FILE, comparison_record
from fedpref.experiment.lanes import run_jobs
from fedpref.experiment.partitions import (
    PARTITIONS_FILE,
    open_partitions,
    partitions_record,
)
from fedpref.experiment.plan import Experiment, check_seeds, experiment_id, model_identity
from fedpref.federation.strategies import make_strategy
from fedpref.files import atomic_write, fedpref_home, try_lock
from fedpref.launch import Scalar
from fedpref.report import write_report

SEEDS = "20260713,20260714,20260715"
DEMO = "demo"
# Seeds of demo partitions stand apart: each uses the next two for its other splits.
_PARTITION_STEP = 100

console = Console(highlight=False)

VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show Flower's and Ray's log as well.")
]


def compare(
    profile: Annotated[
        Path | None, typer.Argument(help="A run-config TOML, such as profiles/openi-tiny.toml.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Compare strategies instead, such as 'uniform,feddraw(eta=2)'. "
            "The first one is what the others are held against.",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Repeat it over so many partitions of the demo's reports.")
    ] = 1,
    sites: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="A folder of site directories; repeated, each is another partition.",
        ),
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
    """Run FedPref, Local and Central, or several strategies, with each seed and compare them.

    The same command goes on where it was stopped, and does nothing twice. Site roots are shared:
    Local, and every strategy, starts from the very roots that the first arm averages. Over several
    partitions the arms are ranked, with Friedman's test and Nemenyi's.
    """
    values = merged_settings(profile, settings or [])
    problems: list[FedPrefError] = []
    chosen = collected(problems, lambda: _seeds(seeds))
    folders = collected(problems, lambda: _folders(values, sites or [], partitions))
    config = collected(problems, lambda: load_config(values | {"sites": DEMO}))
    arms: tuple[Arm, ...] | None = None
    if strategies is not None:
        set_too = sorted({"strategy", "strategy-options"} & values.keys())
        if set_too:
            problems.append(
                ConfigError(
                    f"{' and '.join(set_too)} and --strategies were given",
                    why="each arm has a strategy of its own",
                    fix="leave one of them out",
                    key=set_too[0],
                )
            )
        arms = collected(problems, lambda: strategy_arms(strategies, config or RunConfig()))
    elif config is not None:
        # What is wrong with it is said before Flower starts.
        collected(problems, lambda: make_strategy(config))
        arms = collected(problems, lambda: matched_arms(config))
    if config is not None:
        for place in folders or [Path(DEMO)]:
            collected(problems, partial(check_places, _over(config, place)))
        if chosen is not None:
            collected(problems, partial(check_seeds, config, chosen))
    raise_all(problems)
    assert config is not None
    assert chosen is not None
    assert arms is not None
    run_comparison(
        [_over(config, place) for place in folders or _demo(partitions)],
        chosen,
        arms,
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
    config = load_config({"seed": seed, "sites": str(_demo(1)[0])})
    console.print(f"Sites: {escape(config.sites)}")
    run_comparison(
        [config],
        [seed],
        matched_arms(config),
        into=None,
        app=Path(),
        machine="cpu",
        verbose=verbose,
        as_json=False,
    )


def _over(config: RunConfig, sites: Path | str) -> RunConfig:
    return config.model_copy(update={"sites": str(sites)})


def _folders(values: Mapping[str, Scalar], sites: Sequence[Path], partitions: int) -> list[Path]:
    """Return the folders of sites, one a partition; none if the demo's are meant."""
    told = str(values.get("sites", DEMO))
    if partitions > 1 and (sites or told != DEMO):
        raise ConfigError(
            f"--partitions {partitions} and a folder of sites were given",
            why="it draws partitions of the demo's reports",
            fix="divide your data with `fedpref partition --seed …` and give each folder with "
            "--sites",
        )
    if not sites:
        return [] if told == DEMO else [Path(told)]
    places = [path.resolve() for path in sites]
    raise_all(
        [
            ConfigError(
                f"--sites {path} was given more than once",
                why="one partition twice says nothing about other partitions",
                fix="give each folder once",
            )
            for path, place in dict(zip(sites, places, strict=True)).items()
            if places.count(place) > 1 and places.index(place) == sites.index(path)
        ]
    )
    return list(sites)


def _demo(partitions: int) -> list[Path]:
    """Return the folders of the demo's sites; "demo" would be looked up anew in each round."""
    from fedpref.demo.sites import DEFAULT_SEED, ensure_demo_sites  # noqa: PLC0415  (torch-free)

    return [ensure_demo_sites(seed=DEFAULT_SEED + _PARTITION_STEP * k) for k in range(partitions)]


def run_comparison(
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    arms: Sequence[Arm],
    *,
    into: Path | None,
    app: Path,
    machine: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run what is still to be run, write the results and the report, print the tables.

    There is one configuration a partition; they differ in their sites.
    """
    notes = Console(stderr=True, highlight=False) if as_json else console
    federation = simulation(app / "federation.toml", machine)
    config, model = configs[0], model_identity(configs[0])
    places = [Path(one.sites) for one in configs]
    name = experiment_id(config, seeds, arms=arms, model=model, folders=places)
    folder = (into or Path(config.runs_dir) / name).absolute()
    with only_one(folder):
        openings = open_partitions(folder, configs, seeds, arms, model)
        result: dict[str, Any] = {}
        for number, opening in enumerate(openings, start=1):
            if len(openings) > 1:
                notes.print(f"[bold]Partition {number} of {len(openings)}[/]")
            experiment = opening.begin()
            found, page = _run(experiment, app, federation, notes, verbose=verbose)
            result[experiment.folder.name] = found
        if len(openings) == 1:
            (shown,) = result.values()
        else:
            shown = partitions_record(folder.name, result)
            atomic_write(folder / PARTITIONS_FILE, json.dumps(shown, indent=1) + "\n")
            page = write_report(folder)[0]
    if as_json:
        typer.echo(json.dumps(shown, ensure_ascii=False))
        return
    console.print()
    if len(openings) > 1:
        print_partitions(shown)
    else:
        if shown["runs"][0]["arm"] == FEDPREF:
            first = shown["runs"][0]
            summary = read_summary(folder / first["path"])
            print_rounds(summary, heading=f"FedPref, seed {first['seed']}")
        print_comparison(shown)
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
    arms = ", ".join(arm.name for arm in experiment.arms)
    notes.print(f"{len(jobs)} runs ({arms}; {seeds_text(len(seeds))}) in", markup=False)
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
    comparison = comparison_record(experiment)
    atomic_write(folder / COMPARISON_FILE, json.dumps(comparison, indent=1) + "\n")
    return comparison, write_report(folder)[0]


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds {text!r} is no list of whole numbers", fix="write, for example, 1,2,3"
        ) from None
