"""`fedpref ranks`: which arm is ahead over several partitions, and whether that is chance."""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.sites import JsonOption
from fedpref.errors import DataError
from fedpref.experiment.partitions import ALPHA, ranking
from fedpref.report.comparison import arm_title
from fedpref.report.partitions import Ranking, p_value, reads_of_few
from fedpref.report.result import Comparison, load_comparison
from fedpref.report.text import percent

Loaded = Mapping[Path, Comparison]


class Score(StrEnum):
    """The scores that arms can be ranked by, as `comparison.json` names them."""

    client_mean = "client_mean"
    worst_site = "worst_site"
    pooled = "pooled"


def ranks(
    comparisons: Annotated[
        list[Path],
        typer.Argument(
            metavar="COMPARISON_FOLDER…",
            help="The folders of complete comparisons, each over another partition.",
        ),
    ],
    score: Annotated[
        Score, typer.Option(help="What the arms are ranked by, at the selected round.")
    ] = Score.client_mean,
    as_json: JsonOption = False,
) -> None:
    """Rank the arms of several comparisons: average ranks, Friedman's test, Nemenyi's post-hoc.

    Each comparison is over another partition of the data (fedpref partition), with the same arms
    and seeds. More seeds of one partition do not count: they share its sites.
    """
    loaded = _loaded(comparisons)
    arms = _common_arms(loaded)
    rows = {str(folder): _scores(found, score) for folder, found in loaded.items()}
    first = next(iter(loaded.values()))
    found = ranking(score.value, arms, rows)
    shown = found | {
        "arms": arms,
        "seeds": sorted(first.seeds),
        "partitions": [
            row | {"selected_round": result.selected_round}
            for row, result in zip(found["partitions"], loaded.values(), strict=True)
        ],
    }
    if as_json:
        typer.echo(json.dumps(shown, ensure_ascii=False, allow_nan=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    if any(result.synthetic for result in loaded.values()):
        console.print("[bold yellow]Synthetic data in some comparison: no claim about medicine.[/]")
    console.print(ranks_table(shown))
    print_tests(shown, console)


def _loaded(folders: Sequence[Path]) -> Loaded:
    """Return the comparisons by folder; DataError for a folder that is named twice."""
    loaded: dict[Path, Comparison] = {}
    for folder in folders:
        if other := next((one for one in loaded if one.resolve() == folder.resolve()), None):
            raise _same_partition(other, folder)
        loaded[folder] = load_comparison(folder)
    return loaded


def _scores(found: Comparison, score: Score) -> dict[str, float | None]:
    """Return each arm's mean over seeds at the selected round."""
    return {
        name: getattr(arm.rounds[found.selected_round], score.value)
        for name, arm in found.arms.items()
    }


def _common_arms(loaded: Loaded) -> list[str]:
    """Return the arms of all comparisons, in the order of the first one.

    DataError naming two comparisons of other arms or seeds, or of one and the same partition.
    """
    (first, one), *others = loaded.items()
    for folder, other in others:
        _check_same((first, one), (folder, other), "arms", lambda result: sorted(result.arms))
        _check_same((first, one), (folder, other), "seeds", lambda result: sorted(result.seeds))
    items = list(loaded.items())
    for number, (folder, found) in enumerate(items):
        for other_folder, other in items[number + 1 :]:
            if _divide_alike(found, other):
                raise _same_partition(folder, other_folder)
    return list(one.arms)


def _divide_alike(one: Comparison, other: Comparison) -> bool:
    """Return whether both were made over one partition of the data.

    The audit of its sites tells partitions apart; without it, the folder of the sites does.
    """
    if one.audit is not None and other.audit is not None:
        return one.audit == other.audit
    return "sites" in one.config and one.config["sites"] == other.config.get("sites")


def _same_partition(one: Path, other: Path) -> DataError:
    return DataError(
        f"{one} and {other} are over one and the same partition",
        why="the tests take each comparison as another partition of the data",
        fix="leave one out, or compare over another partition (fedpref partition --seed …)",
    )


def _check_same(
    one: tuple[Path, Comparison],
    other: tuple[Path, Comparison],
    what: str,
    of: Callable[[Comparison], Sequence[object]],
) -> None:
    a, b = of(one[1]), of(other[1])
    if a != b:
        raise DataError(
            f"{one[0]} has the {what} {', '.join(map(str, a))}; "
            f"{other[0]} has {', '.join(map(str, b))}",
            why=f"ranks compare the same {what} over all partitions",
            fix="compare again with the same ones, or leave one of the two out",
        )


def print_tests(shown: Mapping[str, Any], console: Console) -> None:
    """Print both tests of a ranking, or why there are none, and the partitions left out."""
    for row in shown["partitions"]:
        if row["left_out"]:
            console.print(
                f"left out: {row['comparison']}: {row['left_out']}", style="yellow", markup=False
            )
    if shown["degenerate"]:
        console.print(
            f"no tests ({_said(shown)}): {shown['degenerate']}", style="yellow", markup=False
        )
        return
    friedman = shown["friedman"]
    console.print(
        f"Friedman ({_said(shown)}): chi-square {friedman['statistic']:.2f}, {friedman['degrees']} "
        f"degrees of freedom, p {p_value(friedman['p_value'])}"
    )
    ranked = Ranking.model_validate_json(json.dumps(shown))
    for said in reads_of_few(ranked):
        console.print(said, style="dim")
    console.print(_pairs_table(ranked, shown["nemenyi"]["critical_difference"]))
    if friedman["p_value"] >= ALPHA:
        console.print(
            f"Friedman's test finds no difference at {ALPHA:g}, so none between two arms is claimed"
        )


def ranks_table(shown: Mapping[str, Any]) -> Table:
    """Return one row a partition: each arm's score in percent, and its rank there."""
    arms = list(shown["partitions"][0]["scores"])
    table = Table(
        title=f"{_said(shown)} at the selected round, % (rank; 1 is best)",
        title_justify="left",
    )
    table.add_column("partition")
    for arm in arms:
        table.add_column(escape(arm_title(arm)), justify="right")
    for row in shown["partitions"]:
        table.add_row(
            escape(row["comparison"]),
            *(
                percent(score)
                if row["ranks"] is None
                else f"{percent(score)} ({row['ranks'][arm]:g})"
                for arm, score in row["scores"].items()
            ),
        )
    if shown["average_ranks"] is not None:
        table.add_section()
        table.add_row("average rank", *(f"{shown['average_ranks'][arm]:.2f}" for arm in arms))
    return table


def _said(shown: Mapping[str, Any]) -> str:
    said: str = shown["score"].replace("_", " ")
    return said


def _pairs_table(ranked: Ranking, critical_difference: float) -> Table:
    """Return one row a pair of arms: the difference of average ranks, p, and what it says."""
    table = Table(
        title=f"Nemenyi: critical difference {critical_difference:.2f} at {ALPHA:g}",
        title_justify="left",
    )
    for column in ("ahead", "behind", "ranks apart", "p", "differ"):
        left = column in ("ahead", "behind")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for pair in ranked.apart():
        table.add_row(
            escape(arm_title(pair.ahead)),
            escape(arm_title(pair.behind)),
            f"{pair.ranks:.2f}",
            p_value(pair.p_value),
            "yes" if pair.differ else "no",
        )
    return table
