"""The tables of a report in the terminal: the same names, numbers and notes as on its page."""

from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fedpref.report.tables import Table


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print the tables that have rows, each with its caption and its notes."""
    for table in tables:
        if not table.rows:
            continue
        shown = RichTable(
            title=escape(table.title), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
        )
        for number, column in enumerate(table.columns):
            shown.add_column(
                escape(column.title),
                justify="right" if column.kind.numeric else "left",
                overflow="fold",
                # Words and numbers stay whole where that does not take all of the width.
                min_width=min(_longest([column.title, *(row[number] for row in table.cells)]), 14),
            )
        for number, row in enumerate(table.cells):
            style = "bold" if number in table.strong else None
            shown.add_row(*map(escape, row), style=style)
        console.print(shown)
        for note in (table.caption, *table.notes):
            if note:
                console.print(note, markup=False, style="dim")


def warn_of_synthetic(console: Console) -> None:
    """Say that the numbers are of invented reports and a toy model."""
    console.print("[bold yellow]Synthetic demo data and a toy model: no claim about medicine.[/]")


def _longest(texts: Iterable[str]) -> int:
    return max(len(word) for text in texts for word in text.split() or [""])
