"""What the figures draw: values with their error bars, and where names stand beside them. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from fedpref.report.comparison import arm_title, spread
from fedpref.report.result import ArmName, Comparison, Interval

BarSource = Literal["interval", "deviation", "none"]


class Series(NamedTuple):
    """A line: shares by round and, for each, its error bar's ends; None where there is none."""

    title: str
    values: tuple[float | None, ...]
    bars: tuple[Interval | None, ...]


def error_bar_source(result: Comparison) -> BarSource:
    """Return what all error bars of the trajectories are; kinds are never mixed in one figure."""
    if any(
        entry is not None and (entry.client_mean or entry.worst_site)
        for entries in result.trajectory_intervals.values()
        for entry in entries
    ):
        return "interval"
    return "deviation" if len(result.seeds) > 1 else "none"


def arm_series(result: Comparison, arm: ArmName, name: str, source: BarSource) -> Series:
    """Return one arm's client mean or worst site over the rounds."""
    spreads = [spread(round_, name) for round_ in result.arms[arm].rounds]
    bars: tuple[Interval | None, ...] = (None,) * len(spreads)
    if source == "interval":
        entries = result.trajectory_intervals.get(arm, (None,) * len(spreads))
        bars = tuple(None if entry is None else getattr(entry, name) for entry in entries)
    elif source == "deviation":
        bars = tuple(
            None
            if s.mean is None or s.deviation is None
            else (s.mean - s.deviation, s.mean + s.deviation)
            for s in spreads
        )
    return Series(arm_title(arm), tuple(s.mean for s in spreads), bars)


def error_bar_note(result: Comparison, source: BarSource) -> str:
    """Return what the error bars are, and which points have none although they have a value."""
    if source == "none":
        return "One seed and no interval: there are no error bars."
    said = (
        "Error bars are 95 % bootstrap intervals."
        if source == "interval"
        else f"Error bars are the sample standard deviation over {len(result.seeds)} seeds."
    )
    bare = [
        f"{arm_title(arm)} {what} at round {number}"
        for name, what in (("client_mean", "client mean"), ("worst_site", "worst site"))
        for arm in result.arm_names
        for line in [arm_series(result, arm, name, source)]
        for number, (value, bar) in enumerate(zip(line.values, line.bars, strict=True))
        if value is not None and bar is None
    ]
    return said if not bare else f"{said} None could be drawn for: {'; '.join(bare)}."


def value_range(series: Sequence[Series]) -> Interval:
    """Return the axis that shows all values and bars, in percent, with some room, inside 0–100."""
    values = [100 * value for line in series for value in line.values if value is not None]
    values += [100 * end for line in series for bar in line.bars if bar is not None for end in bar]
    if not values:
        return (0.0, 100.0)
    room = max(0.1 * (max(values) - min(values)), 1.0)
    # A marker at 0 or 100 is drawn whole.
    return (max(min(values) - room, -2.0), min(max(values) + room, 102.0))


def spread_out(wanted: Sequence[float], gap: float, limits: Interval) -> list[float]:
    """Return places near the wanted ones, in the same order, at least `gap` apart.

    They stay inside the limits if these have room for all.
    """
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    places = list(wanted)
    for _ in range(50 * len(wanted)):
        moved = False
        for below, above in pairwise(order):
            lacking = gap - (places[above] - places[below])
            if lacking > 1e-9:
                places[below] -= lacking / 2
                places[above] += lacking / 2
                moved = True
        for n in order:
            places[n] = min(max(places[n], limits[0]), limits[1])
        if not moved:
            break
    return places
