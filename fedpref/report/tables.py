"""A table of the report, and its three forms: page, Markdown, CSV. Pure.

Page and Markdown show what a person reads ("69.11 ± 0.17"). CSV splits it into columns of plain
numbers whose names end in the unit; there null is an empty cell.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fedpref.report import text
from fedpref.report.result import Difference


class Spread(NamedTuple):
    """A mean over seeds and its sample standard deviation (None with fewer than two seeds)."""

    mean: float | None
    deviation: float | None


class Round(NamedTuple):
    """A round's number and whether it is the selected one."""

    number: int
    selected: bool = False


@dataclass(frozen=True)
class Kind:
    """What a column holds: how a person reads it, and the CSV columns it is split into."""

    text: Callable[[Any], str]
    csv: Callable[[Any], tuple[str, ...]]
    suffixes: tuple[str, ...] = ("",)
    numeric: bool = True
    code: bool = False


def _plain(value: float | None, digits: int, scale: float = 1) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def _bounds(effect: Difference | None) -> tuple[str, ...]:
    if effect is None:
        return ("", "", "")
    return (_plain(effect.low, 2, 100), _plain(effect.high, 2, 100), effect.degenerate or "")


def _interval_csv(effect: Difference | None) -> tuple[str, ...]:
    return tuple(_literal(part) for part in _bounds(effect))


def _literal(value: str) -> str:
    """Return the text so that no spreadsheet reads it as a formula; numbers stay as they are."""
    if value[:1] in ("=", "+", "@", "\t", "\r") or (value[:1] == "-" and not _number(value)):
        return "'" + value
    return value


def _number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


TEXT: Final = Kind(str, lambda v: (_literal(str(v)),), numeric=False)
CODE: Final = Kind(str, lambda v: (_literal(str(v)),), numeric=False, code=True)
COUNT: Final = Kind(text.count, lambda v: ("" if v is None else str(v),))
PERCENT: Final = Kind(text.percent, lambda v: (_plain(v, 2, 100),), ("_percent",))
SPREAD: Final = Kind(
    lambda v: text.mean_and_spread(v.mean, v.deviation),
    lambda v: (_plain(v.mean, 2, 100), _plain(v.deviation, 2, 100)),
    ("_percent", "_sd_percent"),
)
POINTS: Final = Kind(
    lambda e: text.points(None if e is None else e.effect),
    lambda e: (_plain(None if e is None else e.effect, 2, 100),),
    ("_points",),
)
INTERVAL: Final = Kind(
    text.interval, _interval_csv, ("_low_points", "_high_points", "_no_interval_because")
)
MEGABYTES: Final = Kind(text.megabytes, lambda v: (_plain(v, 6, 1e-6),), ("_megabytes",))
SECONDS: Final = Kind(text.seconds, lambda v: (_plain(v, 3),), ("_seconds",))
ROUND: Final = Kind(
    lambda r: f"{r.number} (selected)" if r.selected else str(r.number),
    lambda r: (str(r.number), "yes" if r.selected else "no"),
    ("", "_selected"),
    numeric=False,
)
PLAIN_ROUND: Final = Kind(str, lambda v: (str(v),), numeric=False)


def fixed(digits: int) -> Kind:
    """Return the kind of a plain number with so many digits."""
    return Kind(
        lambda v: text.NO_DATA if v is None else f"{v:.{digits}f}", lambda v: (_plain(v, digits),)
    )


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV, its heading on the page, what it holds."""

    key: str
    title: str
    kind: Kind


@dataclass(frozen=True)
class Table:
    """A table with its file name, heading, what it shows, and notes that its reader needs.

    A row whose number is in `strong` is the one to look at: its text says why, too.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"{self.name}: {len(wrong)} rows do not have a value a column")

    @property
    def cells(self) -> list[list[str]]:
        """Return the rows as a person reads them."""
        return [
            [column.kind.text(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def to_csv(self) -> str:
        """Return the table as CSV with plain numbers; null is an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [column.key + suffix for column in self.columns for suffix in column.kind.suffixes]
        )
        for row in self.rows:
            writer.writerow(
                [
                    part
                    for column, value in zip(self.columns, row, strict=True)
                    for part in column.kind.csv(value)
                ]
            )
        return out.getvalue()

    def to_markdown(self) -> str:
        """Return the table as a GitHub-flavoured Markdown section."""
        lines = [f"### {_escaped(self.title)}", ""]
        if self.caption:
            lines += [_escaped(self.caption), ""]
        lines += [_line([column.title for column in self.columns])]
        lines += [_line(["---:" if c.kind.numeric else "---" for c in self.columns], raw=True)]
        lines += [_line(row) for row in self.cells]
        for note in self.notes:
            lines += ["", _escaped(note)]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str], *, raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(_escaped, cells))} |"


def _escaped(cell: str) -> str:
    """Return text that neither ends a Markdown cell nor starts HTML."""
    one_line = " ".join(cell.split())
    for mark in ("\\", "|", "`", "*", "_", "["):
        one_line = one_line.replace(mark, "\\" + mark)
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
