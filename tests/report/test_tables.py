import csv
import io

import pytest

from fedpref.report.result import Effect
from fedpref.report.tables import (
    INTERVAL,
    PERCENT,
    POINTS,
    ROUND,
    SPREAD,
    TEXT,
    Column,
    Round,
    Spread,
    Table,
)

EFFECT = Effect(
    a="fedpref",
    b="local",
    round=3,
    site="s",
    effect=-0.0187,
    low=-0.03,
    high=0.01,
    degenerate=None,
)
NONE = EFFECT.model_copy(update={"low": None, "high": None, "degenerate": "all draws are equal"})
TABLE = Table(
    name="t",
    title="A table",
    columns=(
        Column("site", "Site", TEXT),
        Column("round", "Round", ROUND),
        Column("f1", "F1", SPREAD),
        Column("rate", "Rate", PERCENT),
        Column("effect", "Effect", POINTS),
        Column("effect", "95 % interval", INTERVAL),
    ),
    rows=(
        ("s", Round(2, True), Spread(0.6911, 0.0017), 0.5, EFFECT, EFFECT),
        ("=1+1", Round(1), Spread(None, None), None, NONE, NONE),
        ("a|b<c>", Round(0), Spread(0.5, None), None, None, None),
    ),
    notes=("A note.",),
)


def test_csv_holds_plain_numbers_units_in_the_header_and_empty_cells_for_null() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == [
        "site",
        "round",
        "round_selected",
        "f1_percent",
        "f1_sd_percent",
        "rate_percent",
        "effect_points",
        "effect_low_points",
        "effect_high_points",
        "effect_no_interval_because",
    ]
    assert rows[1] == ["s", "2", "yes", "69.11", "0.17", "50.00", "-1.87", "-3.00", "1.00", ""]
    assert rows[2][2:] == ["no", "", "", "", "-1.87", "", "", "all draws are equal"]
    assert rows[3][3:] == ["50.00", "", "", "", "", "", ""]
    assert len(set(rows[0])) == len(rows[0])


def test_csv_text_is_no_formula() -> None:
    assert list(csv.reader(io.StringIO(TABLE.to_csv())))[2][0] == "'=1+1"


def test_markdown_says_what_the_page_says_and_cells_stay_cells() -> None:
    lines = TABLE.to_markdown().splitlines()
    assert lines[0] == "### A table"
    assert lines[3] == "| --- | --- | ---: | ---: | ---: | ---: |"
    assert lines[4] == "| s | 2 (selected) | 69.11 ± 0.17 | 50.00 | −1.87 | −3.00 to +1.00 |"
    assert lines[5].endswith("| no data | −1.87 | no interval: all draws are equal |")
    assert lines[6].startswith("| a\\|b&lt;c&gt; | 0 | 50.00 |")
    assert lines[-1] == "A note."


def test_a_row_has_a_value_a_column() -> None:
    with pytest.raises(ValueError, match="1 rows do not have"):
        Table("t", "T", (Column("a", "A", TEXT),), (("x", "y"),))
