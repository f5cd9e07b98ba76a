"""The command line: `fedpref …`, one file a command group.

Importing this package imports no torch; commands that need it import it when they run.
"""

import logging
import signal
import sys

import typer
from rich.console import Console

from fedpref.cli import (
    audit,
    compare,
    contrast,
    data,
    effect,
    locked_test,
    pairs,
    partition,
    project,
    ranks,
    report,
    run,
    score,
    site,
    strategies,
    summary,
    teach,
)
from fedpref.errors import FedPrefError

app = typer.Typer(
    name="fedpref",
    help="Federated preference learning for structured radiology report extraction.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold report text
    rich_markup_mode="markdown",
)

# In the order of work, as `fedpref --help` lists them.
app.command("demo")(compare.demo)
app.add_typer(data.app, name="data")
app.add_typer(site.app, name="site")
app.command("partition")(partition.partition)
app.command("teach")(teach.teach)
app.command("pairs")(pairs.pairs)
app.command("audit")(audit.audit)
app.command("contrast")(contrast.contrast)
app.command("run")(run.run)
app.command("strategies")(strategies.strategies)
app.command("summary")(summary.summary)
app.command("compare")(compare.compare)
app.command("effect")(effect.effect)
app.command("ranks")(ranks.ranks)
app.command("report")(report.report)
app.command("test")(locked_test.locked_test)
app.command("project")(project.project)
app.command("score")(score.score)


def main() -> None:
    """Run the command line; an error of ours is one clear message and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # A terminated command ends what it has started, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except FedPrefError as error:
        Console(stderr=True, highlight=False).print(
            str(error), style="red", markup=False, soft_wrap=True
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
