"""The figures and the page of a comparison over several partitions."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Final

from fedpref.report.comparison import arm_title
from fedpref.report.figures import GREY, Picture, Style, arm_styles, picture
from fedpref.report.page import Figure, Page, Section, inline_svg
from fedpref.report.partitions import SCORES, Partitions, Ranking, ranking_sentences
from fedpref.report.result import ArmName
from fedpref.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Letters of a name before it goes on in the next line.
_NAME: Final = 22
_SHAPES: Final = 5


def partitions_figures(found: Partitions) -> list[Picture]:
    """Return average ranks with the critical difference, and scores by partition."""
    styles = arm_styles(list(found.arms))
    ranked = [score for score, ranking in found.rankings.items() if ranking.average_ranks]
    pictures = []
    if ranked:
        pictures.append(
            picture(
                "average-ranks",
                "Average ranks",
                "Average rank of each arm over the partitions; 1 is best. The first table holds "
                "the same numbers.",
                "Average ranks; 1 is best. Within the grey line from the best one, Nemenyi's test "
                "tells no arm from it.",
                [_ranks_panel(found.rankings[score], SCORES[score], styles) for score in ranked],
                (4.6, 1.3 + 0.34 * len(found.arms)),
            )
        )
    pictures.append(
        picture(
            "by-partition",
            "Scores by partition",
            "Client mean and worst site of each arm in each partition. The tables by partition "
            "hold the same numbers.",
            "Scores by partition, percent.",
            [_scores_panel(r, SCORES[s], styles) for s, r in found.rankings.items()],
            (4.6, 3.2 + 0.22 * len(found.arms)),
        )
    )
    return pictures


def _ranks_panel(
    ranking: Ranking, title: str, styles: Mapping[ArmName, Style]
) -> Callable[["Axes"], None]:
    ranks = ranking.average_ranks or {}
    order = sorted(ranks, key=lambda arm: ranks[arm])

    def draw(axes: "Axes") -> None:
        if ranking.nemenyi is not None:
            best = ranks[order[0]]
            reach = [best, best + ranking.nemenyi.critical_difference]
            axes.plot(reach, [-0.7, -0.7], "|-", color=GREY, linewidth=2)
        for row, arm in enumerate(order):
            style = styles[arm]
            axes.plot([ranks[arm]], [row], style.marker, color=style.colour, markersize=7)
        axes.set_yticks(range(len(order)), [fill(arm_title(arm), _NAME) for arm in order])
        axes.set_ylim(len(order) - 0.5, -1.1)
        axes.set_xlim(0.8, len(order) + 0.2)
        axes.set_xticks(range(1, len(order) + 1))
        axes.set_xlabel("Average rank")
        axes.set_title(title.capitalize(), loc="left", fontsize=11, fontweight="bold")

    return draw


def _scores_panel(
    ranking: Ranking, title: str, styles: Mapping[ArmName, Style]
) -> Callable[["Axes"], None]:
    def draw(axes: "Axes") -> None:
        step = 0.5 / len(styles)
        for number, (arm, style) in enumerate(styles.items()):
            known = [
                (place + step * (number - (len(styles) - 1) / 2), 100 * value)
                for place, part in enumerate(ranking.partitions, start=1)
                if (value := part.scores.get(arm)) is not None
            ]
            axes.plot(
                [x for x, _ in known],
                [y for _, y in known],
                style.marker,
                color=style.colour,
                # Without lines, shapes recur sooner.
                markerfacecolor=style.colour if number < _SHAPES else "white",
                label=arm_title(arm),
            )
        axes.set_xticks(range(1, len(ranking.partitions) + 1))
        axes.set_xlim(0.5, len(ranking.partitions) + 0.5)
        axes.set_xlabel("Partition")
        axes.set_ylabel("F1 (%)")
        axes.set_title(title.capitalize(), loc="left", fontsize=11, fontweight="bold")
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), frameon=False)

    return draw


def partitions_page(
    found: Partitions, tables: Mapping[str, Table], pictures: Sequence[Picture]
) -> Page:
    """Return the page of a comparison over several partitions."""
    figures = tuple(
        Figure(
            one.name,
            one.caption,
            tuple(
                inline_svg(svg, f"{one.name}-{number}", one.title, one.description)
                for number, svg in enumerate(one.panels)
            ),
        )
        for one in pictures
    )
    by_name = {figure.name: figure for figure in figures}

    def section(key: str, title: str, names: Sequence[str], figure: str, **more: object) -> Section:
        return Section(
            key,
            title,
            figures=(by_name[figure],) if figure in by_name else (),
            tables=tuple(tables[name] for name in names if name in tables),
            **more,  # type: ignore[arg-type]
        )

    sentences = tuple(
        said
        for score, ranking in found.rankings.items()
        for said in ranking_sentences(ranking, SCORES[score])
    )
    return Page(
        title=f"FedPref comparison {found.run}",
        kind="FedPref: comparison over partitions",
        heading=found.run,
        facts=(
            ("Partitions", str(len(found.partitions))),
            ("Arms", str(len(found.arms))),
            ("Seeds", ", ".join(map(str, found.seeds))),
        ),
        synthetic=found.synthetic,
        sections=(
            section(
                "results",
                "Results",
                ("headline", "tests", "nemenyi"),
                "average-ranks",
                sentences=(*sentences, *(f"{note}." for note in found.notes)),
            ),
            section(
                "partitions",
                "By partition",
                ("ranks-client-mean", "ranks-worst-site", "effects", "partitions"),
                "by-partition",
            ),
        ),
    )
