"""`fedpref ranks`: which arm is ahead over several partitions, and whether that is chance."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer
from pydantic import Field, ValidationError, model_validator
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpref.cli.sites import JsonOption
from fedpref.errors import DataError, RoundError
from fedpref.evaluation.ranks import Ranking, rank_strategies
from fedpref.report.result import COMPARISON, Count, Part, Share
from fedpref.report.text import percent

ALPHA = 0.05
NO_SCORE = "an arm has no score"
# Demšar (JMLR 7, 2006): the chi-square approximation is good above both.
_ENOUGH_PARTITIONS, _ENOUGH_ARMS = 10, 5


class Score(StrEnum):
    """The scores that arms can be ranked by, as `comparison.json` names them."""

    client_mean = "client_mean"
    worst_site = "worst_site"
    pooled = "pooled"


class _Round(Part):
    client_mean: Share | None
    worst_site: Share | None
    pooled: Share | None


class _Arm(Part):
    rounds: tuple[_Round, ...]


class _Comparison(Part):
    """What ranks need of a `comparison.json`; its arms may have any names."""

    kind: Literal["comparison"]
    complete: bool = False
    synthetic: bool
    config: dict[str, bool | int | float | str]
    seeds: tuple[int, ...] = Field(min_length=1)
    selected_round: Count
    arms: dict[str, _Arm] = Field(min_length=1)
    audit: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _selected_exists(self) -> Self:
        for name, arm in self.arms.items():
            if self.selected_round >= len(arm.rounds):
                raise ValueError(f"{name} has no round {self.selected_round}, the selected one")
        return self

    def score(self, arm: str, score: Score) -> float | None:
        """Return an arm's mean over seeds at the selected round."""
        found: float | None = getattr(self.arms[arm].rounds[self.selected_round], score.value)
        return found

    def divides_as(self, other: Self) -> bool:
        """Return whether both were made over one partition of the data.

        The audit of its sites tells partitions apart; without it, the folder of the sites does.
        """
        if self.audit is not None and other.audit is not None:
            return self.audit == other.audit
        return "sites" in self.config and self.config["sites"] == other.config.get("sites")


@dataclass(frozen=True)
class _Partition:
    folder: Path
    result: _Comparison


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
    partitions = [_Partition(folder, _read(folder / COMPARISON)) for folder in comparisons]
    arms = _common_arms(partitions)
    scores = [[part.result.score(arm, score) for arm in arms] for part in partitions]
    ranking = rank_strategies(scores, alpha=ALPHA)
    shown = _shown(partitions, arms, score, scores, ranking)
    if as_json:
        typer.echo(json.dumps(shown, ensure_ascii=False, allow_nan=False))
        return
    _print(shown, synthetic=any(part.result.synthetic for part in partitions))


def _read(path: Path) -> _Comparison:
    """Return a checked, complete comparison; RoundError or DataError names the file."""
    try:
        result = _Comparison.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RoundError(
            f"there is no comparison to read ({error.strerror})",
            fix="name the folder of a complete comparison, as runs/compare-… (fedpref compare)",
            file=path,
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(
            f"{place}: {first['msg']}",
            why="arms are ranked only by scores that the file holds",
            fix="write the file anew: fedpref compare",
            file=path,
        ) from None
    if not result.complete:
        raise RoundError("it is not complete", fix="resume it: fedpref compare", file=path)
    return result


def _common_arms(partitions: Sequence[_Partition]) -> list[str]:
    """Return the arms of all comparisons, in the order of the first one.

    DataError naming two comparisons of other arms or seeds, or of one and the same partition.
    """
    first = partitions[0]
    for other in partitions[1:]:
        _check_same(first, other, "arms", lambda result: sorted(result.arms))
        _check_same(first, other, "seeds", lambda result: sorted(result.seeds))
    for number, one in enumerate(partitions):
        for other in partitions[number + 1 :]:
            if one.folder.resolve() == other.folder.resolve() or one.result.divides_as(
                other.result
            ):
                raise DataError(
                    f"{one.folder} and {other.folder} are over one and the same partition",
                    why="the tests take each comparison as another partition of the data",
                    fix="leave one out, or compare over another partition (fedpref partition "
                    "--seed …)",
                )
    return list(first.result.arms)


def _check_same(
    one: _Partition,
    other: _Partition,
    what: str,
    of: Callable[[_Comparison], Sequence[object]],
) -> None:
    a, b = of(one.result), of(other.result)
    if a != b:
        raise DataError(
            f"{one.folder} has the {what} {', '.join(map(str, a))}; "
            f"{other.folder} has {', '.join(map(str, b))}",
            why=f"ranks compare the same {what} over all partitions",
            fix="compare again with the same ones, or leave one of the two out",
        )


def _shown(
    partitions: Sequence[_Partition],
    arms: Sequence[str],
    score: Score,
    scores: Sequence[Sequence[float | None]],
    ranking: Ranking,
) -> dict[str, Any]:
    """Return all that is printed, as a JSON value."""
    average, friedman, nemenyi = ranking.average, ranking.friedman, ranking.nemenyi
    return {
        "score": score.value,
        "arms": list(arms),
        "seeds": sorted(partitions[0].result.seeds),
        "partitions": [
            {
                "comparison": str(part.folder),
                "selected_round": part.result.selected_round,
                "scores": dict(zip(arms, row, strict=True)),
                "ranks": None if rank is None else dict(zip(arms, rank, strict=True)),
                "left_out": NO_SCORE if rank is None else None,
            }
            for part, row, rank in zip(partitions, scores, ranking.ranks, strict=True)
        ],
        "ranked_partitions": ranking.partitions,
        "average_ranks": None if average is None else dict(zip(arms, average, strict=True)),
        "friedman": None if friedman is None else vars(friedman),
        "nemenyi": None
        if nemenyi is None
        else {
            "alpha": nemenyi.alpha,
            "critical_difference": nemenyi.critical_difference,
            "pairs": [
                vars(pair) | {"a": arms[pair.a], "b": arms[pair.b]} for pair in nemenyi.pairs
            ],
        },
        "degenerate": ranking.degenerate,
    }


def _print(shown: Mapping[str, Any], *, synthetic: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if synthetic:
        console.print("[bold yellow]Synthetic data in some comparison: no claim about medicine.[/]")
    console.print(_ranks_table(shown))
    for row in shown["partitions"]:
        if row["left_out"]:
            console.print(
                f"left out: {row['comparison']}: {row['left_out']}", style="yellow", markup=False
            )
    if shown["degenerate"]:
        console.print(f"no tests: {shown['degenerate']}", style="yellow", markup=False)
        return
    friedman = shown["friedman"]
    console.print(
        f"Friedman: chi-square {friedman['statistic']:.2f}, {friedman['degrees']} degrees of "
        f"freedom, p {_p(friedman['p_value'])}"
    )
    if shown["ranked_partitions"] <= _ENOUGH_PARTITIONS or len(shown["arms"]) <= _ENOUGH_ARMS:
        console.print(
            f"p-values are approximate; they are good above {_ENOUGH_PARTITIONS} partitions and "
            f"{_ENOUGH_ARMS} arms",
            style="dim",
        )
    console.print(_pairs_table(shown))
    if friedman["p_value"] >= ALPHA:
        console.print(
            f"Friedman's test finds no difference at {ALPHA:g}, so none between two arms is claimed"
        )


def _ranks_table(shown: Mapping[str, Any]) -> Table:
    """Return one row a partition: each arm's score in percent, and its rank there."""
    table = Table(
        title=f"{shown['score'].replace('_', ' ')} at the selected round, % (rank; 1 is best)",
        title_justify="left",
    )
    table.add_column("partition")
    for arm in shown["arms"]:
        table.add_column(escape(arm), justify="right")
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
        table.add_row(
            "average rank", *(f"{shown['average_ranks'][arm]:.2f}" for arm in shown["arms"])
        )
    return table


def _pairs_table(shown: Mapping[str, Any]) -> Table:
    """Return one row a pair of arms: the difference of average ranks, p, and what it says."""
    nemenyi = shown["nemenyi"]
    claimed = shown["friedman"]["p_value"] < ALPHA
    table = Table(
        title=f"Nemenyi: critical difference {nemenyi['critical_difference']:.2f} at {ALPHA:g}",
        title_justify="left",
    )
    for column in ("ahead", "behind", "ranks apart", "p", "differ"):
        table.add_column(column, justify="left" if column in ("ahead", "behind") else "right")
    for pair in nemenyi["pairs"]:
        ahead, behind = (pair["a"], pair["b"])[:: 1 if pair["difference"] <= 0 else -1]
        table.add_row(
            escape(ahead),
            escape(behind),
            f"{abs(pair['difference']):.2f}",
            _p(pair["p_value"]),
            "yes" if claimed and pair["p_value"] < ALPHA else "no",
        )
    return table


def _p(value: float) -> str:
    return "<0.0001" if value < 0.00005 else f"{value:.4f}"
