"""The tables of a comparison, and of several partitions, in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.ranks import print_tests
from fedpref.cli.tables import warn_of_synthetic
from fedpref.experiment.arms import FEDPREF
from fedpref.report.comparison import arm_title
from fedpref.report.text import megabytes, percent, points

console = Console(highlight=False)


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the arms at the selected round and the effects between them."""
    selected = comparison["selected_round"]
    of_strategies = comparison["runs"][0]["arm"] != FEDPREF
    if of_strategies and comparison["synthetic"]:
        warn_of_synthetic(console)
    over = seeds_text(len(comparison["seeds"]))
    table = _strategies_table(comparison, over) if of_strategies else _arms_table(comparison, over)
    console.print(table)
    effects = Table(
        title="Effects in points of loc+dis F1, paired 95 % interval (patients within sites)",
        title_justify="left",
    )
    effects.add_column("effect", overflow="fold")
    for column in ("client mean", "worst site"):
        effects.add_column(column, justify="right")
    cells = {
        (e["a"], e["b"], e["statistic"]): e
        for e in comparison["effects"]
        if e["round"] == selected and "statistic" in e
    }
    for a, b in dict.fromkeys((a, b) for a, b, _ in cells):
        effects.add_row(
            escape(f"{arm_title(a)} − {arm_title(b)}"),
            *(effect_text(cells[a, b, s]) for s in ("client_mean", "worst_site")),
        )
    console.print(effects)
    if of_strategies:
        console.print(
            "One partition: whether an order of strategies recurs on other partitions is not "
            "tested. --partitions, or --sites more than once, does that."
        )
    for note in comparison["notes"]:
        console.print(note, style="yellow", markup=False)


def _arms_table(comparison: Mapping[str, Any], over: str) -> Table:
    selected = comparison["selected_round"]
    table = Table(title=f"Arms at round {selected}, mean over {over} (%)", title_justify="left")
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
        table.add_row(arm_title(arm), *(percent(row[key]) for key in columns.values()))
    return table


def _strategies_table(comparison: Mapping[str, Any], over: str) -> Table:
    selected, runs = comparison["selected_round"], len(comparison["seeds"])
    table = _scores_table(f"Strategies after the last round, {selected}; mean over {over} (%)")
    for arm, result in comparison["arms"].items():
        row = result["rounds"][selected]
        table.add_row(
            escape(arm),
            *(percent(row[key]) for key in ("client_mean", "worst_site", "site_spread")),
            megabytes(sum(result["bytes"].values()) / runs),
        )
    return table


def _scores_table(title: str, *more: str) -> Table:
    """Return a table of strategies without rows; the spread is named for what it is."""
    caption = "spread: standard deviation over sites; MB: of one run, both ways"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("strategy", overflow="fold")
    for column in ("client mean", "worst site", "spread", "MB", *more):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_partitions(shown: Mapping[str, Any]) -> None:
    """Print the arms over all partitions, their ranks and the tests."""
    if shown["synthetic"]:
        warn_of_synthetic(console)
    over = f"{len(shown['partitions'])} partitions, {seeds_text(len(shown['seeds']))} each"
    table = _scores_table(f"Mean over {over} (%)", "rank")
    ranks = shown["rankings"]["client_mean"]["average_ranks"]
    for arm, row in shown["arms"].items():
        table.add_row(
            escape(arm_title(arm)),
            *(percent(row[key]) for key in ("client_mean", "worst_site", "site_spread")),
            megabytes(row["bytes"]),
            "–" if ranks is None else f"{ranks[arm]:.2f}",
        )
    console.print(table)
    for found in shown["rankings"].values():
        print_tests(found, console)
    for note in shown["notes"]:
        console.print(note, style="yellow", markup=False)


def effect_text(effect: Mapping[str, Any]) -> str:
    """Return an effect in points with its interval, or with the reason why there is none."""
    point = points(effect["effect"])
    if effect["effect"] is None:
        return point
    if effect["degenerate"]:
        return f"{point} (no interval: {effect['degenerate']})"
    return f"{point} ({points(effect['low'])} … {points(effect['high'])})"


def seeds_text(count: int) -> str:
    """Return "1 seed" or "<count> seeds"."""
    return "1 seed" if count == 1 else f"{count} seeds"
