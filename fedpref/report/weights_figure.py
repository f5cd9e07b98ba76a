"""The figure of the aggregation weights by round, a line a site."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fedpref.report.figures import Picture, numbered_style, picture, short_name
from fedpref.report.series import spread_out
from fedpref.report.trace import Said

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH: Final = 5.2
_INCHES_A_NAME: Final = 0.21


def weights_by_round(said: Mapping[str, Said], sites: Sequence[str]) -> list[Picture]:
    """Return the figure, a panel a strategy whose weights change; none if no strategy's do."""
    changing = {
        title: {site: [row.get(site, 0.0) for row in weights] for site in sites}
        for title, (_, weights) in said.items()
        if any(row != weights[0] for row in weights)
    }
    if not changing:
        return []
    return [
        picture(
            "weights",
            "Aggregation weights by round",
            "The share of each site in the average of the round's adapters, a line a site. The "
            "table of aggregation weights holds the same numbers.",
            "Aggregation weights by round, a line a site.",
            [_panel(title, lines) for title, lines in changing.items()],
            (_WIDTH, _height(len(sites))),
        )
    ]


def _panel(title: str, lines: Mapping[str, Sequence[float | None]]) -> Callable[["Axes"], None]:
    known = [
        (site, numbered_style(number), found)
        for number, (site, line) in enumerate(lines.items())
        if (found := [(x, value) for x, value in enumerate(line) if value is not None])
    ]
    last = max(len(line) for line in lines.values()) - 1
    top = 1.1 * max(value for _, _, found in known for _, value in found)
    first, end = ([found[at][1] for _, _, found in known] for at in (0, -1))
    # Names stand where the lines are farther apart.
    left = max(first) - min(first) > max(end) - min(end)
    # Room for the longest name, whose letters are a tenth of an inch wide; it grows with the axis.
    part = min(0.06 + 0.1 * max(len(short_name(site)) for site, _, _ in known) / _WIDTH, 0.5)
    room = (last + 0.25) * part / (1 - part)

    def draw(axes: "Axes") -> None:
        gap = top * _INCHES_A_NAME / (_height(len(lines)) - 0.8)
        places = spread_out(first if left else end, gap, (0.0, top))
        for y, (site, style, found) in zip(places, known, strict=True):
            axes.plot(
                [x for x, _ in found],
                [value for _, value in found],
                style.line,
                color=style.colour,
                marker=style.marker,
                markersize=5,
            )
            axes.text(
                -0.2 if left else last + 0.2,
                y,
                short_name(site),
                color=style.colour,
                va="center",
                ha="right" if left else "left",
                fontweight="bold",
            )
        axes.set_ylim(0, top)
        axes.set_xlim(-room if left else -0.25, last + (0.25 if left else room))
        axes.set_xticks(range(0, last + 1, 1 if last <= 10 else -(-last // 8)))
        axes.set_xlabel("Round")
        axes.set_ylabel("Weight")
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")

    return draw


def _height(sites: int) -> float:
    return max(3.3, 0.9 + _INCHES_A_NAME * sites)
