"""The figures of a report, drawn with matplotlib; equal input gives equal bytes.

Arms differ in marker and line style as well as in colour (dark variants of Okabe and Ito's), and
carry their names in the picture, so that neither colour nor a legend is needed to read it.
matplotlib is imported by these functions only: the package is importable without it.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from fedpref.report.comparison import contrast_title
from fedpref.report.result import ArmName, Comparison, Interval, Run
from fedpref.report.series import (
    Series,
    arm_series,
    error_bar_note,
    error_bar_source,
    spread_out,
    value_range,
)
from fedpref.report.text import NO_DATA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """How one series is drawn."""

    colour: str
    marker: str
    line: str


STYLES: Final[dict[ArmName, Style]] = {
    "central": Style("#00568f", "s", "--"),
    "fedpref": Style("#b34700", "o", "-"),
    "local": Style("#00694d", "^", ":"),
}
# No two of 7, 5 and 4 have a common divisor: the first 140 lines all differ.
_COLOURS: Final = ("#00568f", "#b34700", "#00694d", "#8a4b80", "#333333", "#7a5c00", "#9e1b32")
_MARKERS: Final = ("o", "s", "^", "D", "v")
_LINES: Final = ("-", "--", ":", "-.")
GREY: Final = "#595959"
_PANEL: Final = (4.3, 3.3)
_LONGEST_NAME: Final = 18
# A longer name stands below the axes, not at the end of its line.
_LONGEST_END: Final = 12
_LONGEST_TITLE: Final = 36
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    # Drawn as given: "$" in a site's name is no formula.
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
}


def numbered_style(number: int) -> Style:
    """Return the style of one of many lines."""
    return Style(
        _COLOURS[number % len(_COLOURS)],
        _MARKERS[number % len(_MARKERS)],
        _LINES[number % len(_LINES)],
    )


def arm_styles(names: Sequence[ArmName]) -> dict[ArmName, Style]:
    """Return how each arm is drawn: the paper's always alike, strategies by their place."""
    if all(name in STYLES for name in names):
        return {name: STYLES[name] for name in names}
    return {name: numbered_style(number) for number, name in enumerate(names)}


@dataclass(frozen=True)
class Picture:
    """A figure: its panels for the page, one SVG each, and all of them side by side as files."""

    name: str
    title: str
    description: str
    caption: str
    panels: tuple[str, ...]
    svg: bytes
    png: bytes


def trajectories(result: Comparison) -> Picture:
    """Return client mean and worst site over the rounds, an arm a line (Figure 2's shape)."""
    source = error_bar_source(result)
    kinds = (("client_mean", "Client mean"), ("worst_site", "Worst site"))
    series = {
        key: [arm_series(result, arm, key, source) for arm in result.arm_names] for key, _ in kinds
    }
    limits = value_range([s for found in series.values() for s in found])

    def panel(key: str, title: str) -> Callable[["Axes"], None]:
        def draw(axes: "Axes") -> None:
            styles = list(arm_styles(result.arm_names).values())
            _lines(axes, series[key], styles, limits)
            _rounds_axis(axes, title, result.rounds, names=_ends_named(series[key]))
            if result.of_strategies:
                return  # the last round, which nothing selects
            axes.axvline(result.selected_round, color=GREY, linewidth=0.8, zorder=0)
            axes.annotate(
                "selected",
                (result.selected_round, limits[0]),
                (3, 3),
                textcoords="offset points",
                va="bottom",
                rotation=90,
                fontsize=8,
                color=GREY,
            )

        return draw

    return picture(
        "trajectories",
        "Scores by round",
        "Loc+dis F1 in percent over the rounds, client mean and worst site, a line an arm. "
        "The table of scores by round holds the same numbers.",
        error_bar_note(result, source),
        [panel(key, title) for key, title in kinds],
        (_PANEL[0], _PANEL[1] + _legend_height(series["client_mean"])),
    )


def site_effects(result: Comparison) -> Picture:
    """Return each site's effects at the selected round with intervals, a comparison a panel."""
    at = result.selected_round
    sites = list(result.sites)
    found = {
        contrast: [result.effect(contrast, at, site) for site in sites]
        for contrast in result.contrasts
    }
    bounds = [
        100 * value
        for effects in found.values()
        for e in effects
        if e is not None
        for value in (e.effect, e.low, e.high)
        if value is not None
    ]
    low, high = min([0.0, *bounds]), max([0.0, *bounds])
    margin = 0.08 * (high - low) or 1.0

    def panel(contrast: tuple[ArmName, ArmName]) -> Callable[["Axes"], None]:
        def draw(axes: "Axes") -> None:
            style = arm_styles(result.arm_names)[contrast[0]]
            axes.axvline(0, color=GREY, linewidth=1)
            for row, effect in enumerate(found[contrast]):
                if effect is None or effect.effect is None:
                    axes.annotate(
                        NO_DATA,
                        (0, row),
                        (4, 0),
                        textcoords="offset points",
                        va="center",
                        color=GREY,
                        fontsize=9,
                    )
                    continue
                x = 100 * effect.effect
                known = effect.low is not None and effect.high is not None
                if effect.low is not None and effect.high is not None:
                    axes.plot([100 * effect.low, 100 * effect.high], [row, row], color=style.colour)
                face = style.colour if known else "white"
                axes.plot([x], [row], style.marker, color=style.colour, markerfacecolor=face)
            axes.set_yticks(range(len(sites)), [short_name(site) for site in sites])
            axes.set_ylim(len(sites) - 0.5, -0.5)
            axes.set_xlim(low - margin, high + margin)
            axes.set_xlabel("F1 difference (points)")
            title = fill(contrast_title(contrast), _LONGEST_TITLE)
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
            axes.grid(visible=False, axis="y")

        return draw

    return picture(
        "site-effects",
        f"Effects by site at round {at}",
        "Differences of loc+dis F1 in points, a row a site. The table of sites holds the same "
        "numbers.",
        "Bars are 95 % intervals; a hollow marker has none, and the table says why.",
        [panel(contrast) for contrast in result.contrasts],
        (_PANEL[0], 1.1 + 0.32 * max(len(sites), 3)),
    )


def run_scores(run: Run) -> Picture:
    """Return the scores of one run over its rounds, with every site's F1 as a thin line."""
    shown = (
        ("Client mean", [r.client_mean for r in run.rounds], STYLES["fedpref"]),
        ("Worst site", [r.worst_site for r in run.rounds], STYLES["local"]),
    )
    lines = [Series(title, tuple(values), (None,) * len(values)) for title, values, _ in shown]
    sites = [
        Series(
            site,
            tuple(e.location_disease_f1 if (e := r.sites.get(site)) else None for r in run.rounds),
            (None,) * len(run.rounds),
        )
        for site in run.sites
    ]
    limits = value_range([*lines, *sites])

    def draw(axes: "Axes") -> None:
        for site in sites:
            xs, ys = _known(site.values)
            axes.plot(xs, ys, color="#bbbbbb", linewidth=0.9, marker=".", markersize=3, zorder=1)
        _lines(axes, lines, [style for _, _, style in shown], limits)
        _rounds_axis(axes, "Loc+dis F1 by round", run.rounds[-1].round)

    return picture(
        "rounds",
        "Scores by round",
        "Loc+dis F1 in percent over the rounds: client mean, worst site, and each site thinly. "
        "The tables of rounds and of sites hold the same numbers.",
        "Thin grey lines: the sites.",
        [draw],
        (5.2, 3.5),
    )


def _lines(
    axes: "Axes", series: Sequence[Series], styles: Sequence[Style], limits: Interval
) -> None:
    """Draw lines with markers, error bars and their names at the right end."""
    # Beside one another, so that no error bar hides another one.
    shifts = [0.07 * (n - (len(series) - 1) / 2) for n in range(len(series))]
    ends: list[tuple[float, Series, Style]] = []
    for line, style, shift in zip(series, styles, shifts, strict=True):
        xs, ys = _known(line.values)
        places = [x + shift for x in xs]
        for x, bar in enumerate(line.bars):
            if bar is not None:
                ends_of_bar = [100 * bar[0], 100 * bar[1]]
                axes.plot([x + shift] * 2, ends_of_bar, "_-", color=style.colour, linewidth=1.1)
        axes.plot(
            places,
            ys,
            style.line,
            color=style.colour,
            marker=style.marker,
            markersize=5.5,
            zorder=3,
            label=line.title,
        )
        if ys:
            ends.append((ys[-1], line, style))
    if not ends:
        axes.text(0.5, 0.5, NO_DATA, transform=axes.transAxes, ha="center", color=GREY)
    last = len(series[0].values) - 1
    axes.set_ylim(*limits)
    places = spread_out([end for end, _, _ in ends], 0.075 * (limits[1] - limits[0]), limits)
    if _ends_named(series):
        for y, (_, line, style) in zip(places, ends, strict=True):
            axes.text(last + 0.2, y, line.title, color=style.colour, va="center", fontweight="bold")
    elif ends:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), frameon=False, handlelength=3.5)
    axes.set_ylabel("F1 (%)")


def _ends_named(series: Sequence[Series]) -> bool:
    """Return whether all names are short enough to stand at the ends of their lines."""
    return all(len(line.title) <= _LONGEST_END for line in series)


def _legend_height(series: Sequence[Series]) -> float:
    """Return the inches that the names take below the axes."""
    return 0.0 if _ends_named(series) else 0.2 + 0.22 * len(series)


def _rounds_axis(axes: "Axes", title: str, last: int, *, names: bool = True) -> None:
    step = 1 if last <= 10 else -(-last // 8)
    axes.set_xticks(range(0, last + 1, step))
    # Room for the names at the right end; they grow with the axis.
    axes.set_xlim(-0.25, last + 0.25 + (max(0.38 * last, 0.4) if names else 0))
    axes.set_xlabel("Round")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")


def _known(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    known = [(x, 100 * value) for x, value in enumerate(values) if value is not None]
    return [x for x, _ in known], [y for _, y in known]


def short_name(name: str) -> str:
    """Return a name that fits beside a figure."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def picture(
    name: str,
    title: str,
    description: str,
    caption: str,
    panels: Sequence[Callable[["Axes"], None]],
    size: tuple[float, float],
) -> Picture:
    """Return what the panels' functions draw; `size` is a panel's, in inches."""
    single = [_render([draw], size, f"{name}-{n}", "svg") for n, draw in enumerate(panels)]
    svg, png = _render(panels, size, name, "svg", "png")
    return Picture(
        name, title, description, caption, tuple(part.decode() for (part,) in single), svg, png
    )


def _render(
    panels: Sequence[Callable[["Axes"], None]], size: tuple[float, float], salt: str, *forms: str
) -> list[bytes]:
    """Return the panels side by side in each of the forms."""
    files = []
    with _settings(salt) as figure_class:
        figure = figure_class(figsize=(size[0] * len(panels), size[1]))
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, draw in zip(row, panels, strict=True):
            draw(axes)
        for form in forms:
            out = io.BytesIO()
            # Neither a date nor matplotlib's version: the file depends on what it shows.
            none: Mapping[str, Any] = (
                {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
            )
            figure.savefig(out, format=form, dpi=200, metadata=none)
            figure.set_layout_engine("none")  # it stands; another time would take as long
            files.append(out.getvalue())
    return files


@contextmanager
def _settings(salt: str) -> Iterator[type["Figure"]]:
    """Yield the class of figures while these settings hold; no window system is asked for."""
    import matplotlib as mpl  # noqa: PLC0415  (the extra `report` may be missing)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()  # not the user's own settings
        mpl.rcParams.update({**_SETTINGS, "svg.hashsalt": f"fedpref-{salt}"})
        yield Figure
