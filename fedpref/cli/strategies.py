"""`fedpref strategies`: the aggregation strategies that have a name, and their options."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpref.cli.sites import JsonOption
from fedpref.federation.strategies.catalogue import NAMED, Option, options_of


def strategies(as_json: JsonOption = False) -> None:
    """List the strategies that a run can name, with their options and defaults."""
    if as_json:
        typer.echo(json.dumps(listed(), indent=2, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    # A name is copied and an option typed: neither may be broken in the middle.
    table.add_column(no_wrap=True)
    table.add_column()
    for name, entry in NAMED.items():
        options = [f"  {_shown(option)}" for option in options_of(entry.strategy)]
        table.add_row(name, Text("\n".join([f"{entry.does} ({entry.source})", *options])))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        'A strategy of your own: strategy = "package.module:Class", its keyword arguments in '
        "strategy-options. docs/strategies.md says how.",
        markup=False,
    )


def listed() -> dict[str, Any]:
    """Return name → what it does, source and options, as a JSON value."""
    return {
        name: {
            "does": entry.does,
            "source": entry.source,
            "options": {
                option.name: {
                    "values": option.values,
                    "default": None if option.required else option.default,
                }
                for option in options_of(entry.strategy)
            },
        }
        for name, entry in NAMED.items()
    }


def _shown(option: Option) -> str:
    values = f" ({option.values})" if "|" in option.values else ""
    if option.required:
        return f"{option.name}{values}, required"
    return f"{option.name}={json.dumps(option.default)}{values}"
