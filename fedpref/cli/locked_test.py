"""`fedpref test`: the selected FedPref and Central policies, once, on the locked test split."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpref.cli.sites import JsonOption
from fedpref.cli.tables import print_tables, warn_of_synthetic
from fedpref.config import load_config
from fedpref.errors import ResumeError
from fedpref.evaluation.lock import complete, open_lock
from fedpref.evaluation.locked_test import cases_digest, held_out_cases
from fedpref.experiment.arms import FEDPREF
from fedpref.experiment.collect import check_agreements, collect
from fedpref.experiment.comparison import COMPARISON_FILE
from fedpref.experiment.plan import open_experiment
from fedpref.experiment.results import selected_round
from fedpref.files import atomic_write
from fedpref.report import write_report
from fedpref.report.locked_test import (
    LOCKED_TEST,
    LockedTest,
    locked_test_sentences,
    locked_test_tables,
)


def locked_test(
    comparison: Annotated[Path, typer.Argument(help="The folder of a complete comparison.")],
    locks: Annotated[
        Path | None,
        typer.Option(help="The folder of the locks. (Default: `locks` among the sites)"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate the selected round of FedPref and Central on the test split, once and for good.

    The result goes into the comparison's folder and its report.

    The lock belongs to the test reports, not to the run: another comparison over these sites finds
    it closed.
    """
    folder = comparison.absolute()
    told = _comparison(folder)
    experiment = open_experiment(folder, load_config(told["config"]), told["seeds"]).begin()
    cases = held_out_cases(experiment.sites)
    # What decides is what was measured, not what a file says of it.
    jobs = experiment.jobs()
    check_agreements(jobs)
    round_ = selected_round([collect(experiment, job) for job in jobs if job.arm == FEDPREF])
    from fedpref.experiment.test_split import load_policies, run_locked_test  # noqa: PLC0415

    policies = load_policies(experiment, round_)
    home = Path(experiment.config.sites)
    lock = open_lock(locks or home / "locks", cases_digest(cases), told["run"])
    notes = Console(stderr=True, highlight=False)
    found = run_locked_test(
        experiment, policies, cases, say=lambda line: notes.print(line, markup=False)
    )
    result = {
        "round": round_,
        "seeds": told["seeds"],
        "synthetic": told["synthetic"],
        "earlier": lock.earlier,
        **found.to_dict(),
    }
    complete(lock, result)
    atomic_write(folder / LOCKED_TEST, json.dumps(result, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False))
    else:
        print_result(result)
        # Paths on lines of their own, so that a narrow terminal does not break them.
        typer.echo(f"Locked:\n{lock.path}")
    # Last: whatever becomes of it, the result has been seen and kept.
    page = write_report(folder)[0]
    if not as_json:
        typer.echo(f"Report, for a browser:\n{page}")


def print_result(result: Mapping[str, Any]) -> None:
    """Print the measures of both policies and the effect between them."""
    console = Console(highlight=False)
    if result["synthetic"]:
        warn_of_synthetic(console)
    test = LockedTest.model_validate_json(json.dumps(result))
    print_tables(console, [locked_test_tables(test)["locked-test"]])
    for sentence in locked_test_sentences(test):
        console.print(sentence, markup=False)


def _comparison(folder: Path) -> dict[str, Any]:
    path = folder / COMPARISON_FILE
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ResumeError(
            "there is no complete comparison",
            why="the test split is opened after the round has been selected",
            fix="run `fedpref compare` to its end first",
            file=path,
        ) from None
    if not {"fedpref", "central"} <= told["arms"].keys():
        raise ResumeError(
            "this comparison is of strategies",
            why="the locked test is of FedPref and Central",
            fix="name the folder of a comparison without --strategies",
            file=path,
        )
    return told
