"""Numbers as a report writes them: percent with two digits, "no data" for null. Pure."""

from typing import Final

from fedpref.report.result import Difference

NO_DATA: Final = "no data"
_MINUS: Final = "\N{MINUS SIGN}"


def percent(share: float | None) -> str:
    """Return a share as percent with two digits, without the sign."""
    return NO_DATA if share is None else f"{100 * share:.2f}"


def points(difference: float | None) -> str:
    """Return a difference of shares as signed percentage points; what rounds to 0 has no sign."""
    if difference is None:
        return NO_DATA
    text = f"{100 * difference:+.2f}"
    if float(text) == 0:
        return "0.00"
    return text.replace("-", _MINUS)


def mean_and_spread(mean: float | None, deviation: float | None) -> str:
    """Return "mean ± sample standard deviation", both percent; the mean alone without one."""
    if mean is None or deviation is None:
        return percent(mean)
    return f"{percent(mean)} ± {percent(deviation)}"


def interval(effect: Difference | None) -> str:
    """Return "low to high" in points, or in words why there is no interval."""
    if effect is None:
        return NO_DATA
    if effect.degenerate:
        return f"no interval: {effect.degenerate}"
    if effect.low is None or effect.high is None:
        return NO_DATA
    return f"{points(effect.low)} to {points(effect.high)}"


def megabytes(count: float | None) -> str:
    """Return bytes as megabytes (10⁶ bytes) with two digits."""
    return NO_DATA if count is None else f"{count / 1e6:,.2f}"


def seconds(value: float | None) -> str:
    """Return seconds with one digit."""
    return NO_DATA if value is None else f"{value:,.1f}"


def count(value: int | None) -> str:
    """Return a whole number with separated thousands."""
    return NO_DATA if value is None else f"{value:,}"


def setting(value: bool | float | str) -> str:
    """Return a configuration value as a TOML file would write it, an empty one as such."""
    if isinstance(value, bool):
        return str(value).lower()
    return "(empty)" if value == "" else str(value)
