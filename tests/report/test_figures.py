import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from fedpref.report import figures, series
from fedpref.report.result import Comparison

Value = dict[str, Any]


def parsed(value: Value) -> Comparison:
    return Comparison.model_validate_json(json.dumps(value))


def texts(svg: bytes | str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_lines_carry_their_names_and_the_selected_round(comparison: Value) -> None:
    picture = figures.trajectories(parsed(comparison))
    assert b"<dc:date>" not in picture.svg
    assert picture.png.startswith(b"\x89PNG")
    assert b"matplotlib" not in picture.png[:400]
    panels = picture.panels
    assert len(panels) == 2
    for panel, title in zip(panels, ("Client mean", "Worst site"), strict=True):
        assert {"Central", "FedPref", "Local", "selected", "F1 (%)", title} <= set(texts(panel))


def test_arms_differ_in_more_than_colour() -> None:
    styles = figures.STYLES.values()
    assert len({style.marker for style in styles}) == len({style.line for style in styles}) == 3


@pytest.mark.parametrize("style", figures.STYLES.values(), ids=list(figures.STYLES))
def test_names_are_readable_on_white(style: figures.Style) -> None:
    """WCAG 2's contrast ratio for text, at least 4.5."""
    channels = [int(style.colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_a_site_name_is_drawn_as_it_is_and_a_long_one_is_cut(comparison: Value) -> None:
    odd = "$x_1$ <b>&"
    text = json.dumps(comparison).replace('"site-4"', json.dumps(odd))
    found = texts(
        figures.site_effects(parsed(json.loads(text.replace("site-3", "s" * 64)))).panels[0]
    )
    assert odd in found
    assert "s" * 17 + "…" in found


def test_nothing_known_draws_no_line_and_says_so(comparison: Value) -> None:
    for arm in comparison["arms"].values():
        for record in arm["rounds"]:
            for scores in (record, *record["by_seed"]):
                scores["client_mean"] = None
    comparison["trajectory_intervals"] = {}
    panels = figures.trajectories(parsed(comparison)).panels
    assert "no data" in texts(panels[0])
    assert "no data" not in texts(panels[1])


def test_site_effects_without_interval_or_data(comparison: Value) -> None:
    for row in comparison["effects"]:
        if row.get("site") == "site-1":
            row |= {"low": None, "high": None, "degenerate": "all draws are equal"}
        if row.get("site") == "site-2":
            row |= {"effect": None, "low": None, "high": None, "degenerate": "no positives"}
    picture = figures.site_effects(parsed(comparison))
    assert "no data" in texts(picture.panels[0])
    assert re.search(r"fill: (#ffffff|white); stroke: #b34700", picture.panels[0])


def test_error_bars_are_intervals_else_deviations_else_none(comparison: Value) -> None:
    result = parsed(comparison)
    assert series.error_bar_source(result) == "interval"
    line = series.arm_series(result, "fedpref", "client_mean", "interval")
    assert line.bars[3] == pytest.approx((0.6721, 0.7081))
    comparison["trajectory_intervals"] = {}
    result = parsed(comparison)
    assert series.error_bar_source(result) == "deviation"
    line = series.arm_series(result, "fedpref", "client_mean", "deviation")
    assert line.bars[3] == pytest.approx((0.6894, 0.6928))
    assert "standard deviation over 3 seeds" in series.error_bar_note(result, "deviation")
    comparison["seeds"] = comparison["seeds"][:1]
    for arm in comparison["arms"].values():
        for record in arm["rounds"]:
            record["by_seed"] = record["by_seed"][:1]
    result = parsed(comparison)
    assert series.error_bar_source(result) == "none"
    assert "no error bars" in series.error_bar_note(result, "none")


def test_a_point_without_its_bar_is_named(comparison: Value) -> None:
    comparison["trajectory_intervals"]["local"][2] = {"client_mean": None, "worst_site": None}
    comparison["trajectory_intervals"]["central"][0] = None
    note = series.error_bar_note(parsed(comparison), "interval")
    assert "None could be drawn for: Central client mean at round 0; Local client mean" in note


def test_names_are_moved_apart_and_stay_inside() -> None:
    assert series.spread_out([1.0, 5.0], 2.0, (0, 10)) == [1.0, 5.0]
    assert series.spread_out([5.0, 5.5], 2.0, (0, 10)) == pytest.approx([4.25, 6.25])
    crowded = series.spread_out([10.0, 9.9, 10.0], 2.0, (0, 10))
    assert crowded[1] < crowded[0] < crowded[2] <= 10
    assert crowded[0] - crowded[1] == pytest.approx(2.0, abs=1e-3)
    assert series.spread_out([], 1.0, (0, 1)) == []


def test_the_axis_shows_all_values_and_bars() -> None:
    line = series.Series("x", (0.5, None, 0.6), ((0.4, 0.7), None, None))
    assert series.value_range([line]) == pytest.approx((37.0, 73.0))
    assert series.value_range([]) == (0.0, 100.0)
    assert series.value_range([series.Series("x", (1.0,), (None,))]) == (99.0, 101.0)
