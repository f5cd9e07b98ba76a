"""The tables of a comparison against the paper's printed ones."""

import json
from collections.abc import Callable
from typing import Any

from fedpref.report import comparison as tables
from fedpref.report.result import Comparison

Value = dict[str, Any]


def parsed(value: Value) -> Comparison:
    return Comparison.model_validate_json(json.dumps(value))


def test_the_headline_is_table_1(comparison: Value) -> None:
    rows = tables.headline_table(parsed(comparison)).cells
    assert [[row[0], *row[2:]] for row in rows] == [
        ["Central", "71.77 ± 0.65", "70.03 ± 1.15", "94.95 ± 0.27"],
        ["FedPref", "69.11 ± 0.17", "68.12 ± 0.22", "91.49 ± 0.27"],
        ["Local", "66.62 ± 0.32", "59.02 ± 1.45", "91.67 ± 0.85"],
    ]


def test_one_seed_has_no_spread_and_says_so(make_comparison: Callable[..., Value]) -> None:
    table = tables.headline_table(parsed(make_comparison(1)))
    assert "±" not in str(table.cells)
    assert "One seed (20260713): no spread between seeds is known." in table.caption


def test_sites_are_table_2(comparison: Value) -> None:
    table = tables.sites_table(parsed(comparison))
    at = [column.title for column in table.columns].index("FedPref − Local")
    assert [row[at] for row in table.cells] == [
        "−1.87", "+0.87", "−1.72", "+3.73", "+9.46", "+4.47",
    ]  # fmt: skip
    assert [row[1] for row in table.cells] == ["717", "591", "556", "486", "297", "314"]


def test_trajectories_are_table_8(comparison: Value) -> None:
    table = tables.trajectory_table(parsed(comparison))
    assert table.cells[5] == ["1", "Local", "62.29 ± 0.13", "53.80 ± 0.06", "87.85 ± 0.31"]
    assert [table.cells[row][0] for row in sorted(table.strong)] == ["3 (selected)"] * 3
    assert len(table.rows) == 12


def test_the_findings_say_what_the_paper_says(comparison: Value) -> None:
    assert tables.findings(parsed(comparison))[:2] == (
        "On the client mean, FedPref is 2.49 points above Local (95 % interval +1.24 to +3.79, "
        "which does not include 0).",
        "On the worst site, FedPref is 9.10 points above Local (95 % interval +1.01 to +11.87, "
        "which does not include 0).",
    )


def first_finding(comparison: Value, **effect: object) -> str:
    for row in comparison["effects"]:
        if row["round"] == 3 and row.get("statistic") == "client_mean" and row["a"] == "fedpref":
            row.update(effect)
    return tables.findings(parsed(comparison))[0]


def test_a_finding_without_an_interval_gives_the_reason(comparison: Value) -> None:
    none = {"low": None, "high": None}
    assert first_finding(comparison, **none, degenerate="all draws are equal").endswith(
        "2.49 points above Local (no interval: all draws are equal)."
    )
    why = "an arm has no positives on either side"
    assert first_finding(comparison, effect=None, **none, degenerate=why) == (
        f"On the client mean, FedPref and Local cannot be compared: {why}."
    )


def test_a_finding_of_nothing_or_of_less_is_said_so(comparison: Value) -> None:
    even = first_finding(comparison, effect=0.00001, low=-0.01, high=0.02)
    assert "FedPref and Local are equal to two digits" in even
    assert even.endswith("which includes 0).")
    assert "1.00 points below Local" in first_finding(comparison, effect=-0.01)
    # What is printed as 0.00 is not said to be apart from 0.
    assert first_finding(comparison, low=0.00001).endswith("0.00 to +2.00, which includes 0).")


def test_null_is_no_data_in_every_table(comparison: Value) -> None:
    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            keep = {"exposure", "bytes", "seconds"}
            return {k: v if k in keep else emptied(v) for k, v in value.items()}
        if isinstance(value, list):
            return [emptied(item) for item in value]
        return None

    comparison["arms"] = emptied(comparison["arms"])
    none = {"effect": None, "low": None, "high": None, "degenerate": "no reports"}
    comparison["effects"] = [row | none for row in comparison["effects"]]
    found = tables.comparison_tables(parsed(comparison))
    assert tables.headline_table(parsed(comparison)).cells[0] == ["Central", *["no data"] * 4]
    for name in ("headline", "measures", "trajectories", "effects", "sites-disease"):
        assert "0.00" not in found[name].to_markdown()
        assert "no data" in found[name].to_markdown()
    assert "no interval: no reports" in found["effects"].to_markdown()
    assert "no interval: no reports" in found["sites"].to_markdown()
    assert "0.00" not in found["sites"].to_csv()


def test_a_site_without_an_effect_has_no_data(comparison: Value) -> None:
    comparison["effects"] = [e for e in comparison["effects"] if e.get("site") != "site-4"]
    row = tables.sites_table(parsed(comparison)).cells[4]
    assert row[0] == "site-4"
    assert row[-4:] == ["no data"] * 4


def test_the_audit_has_the_shape_of_tables_6_and_7(comparison: Value) -> None:
    found = tables.comparison_tables(parsed(comparison))
    assert found["audit-divergence"].cells[0] == [
        "train pairs", "2,961", "4", "8.83", "1.89", "4.67", "0.0005",
    ]  # fmt: skip
    assert found["audit-prevalence-train-pairs"].cells[2][:4] == [
        "lung opacity",
        "61.50",
        "50.80",
        "73.40",
    ]


def test_a_deployments_audit_has_no_chance_columns(comparison: Value) -> None:
    audit = comparison["audit"]
    audit |= {"mode": "deployment", "permutations": None}
    for cohort in audit["cohorts"]:
        cohort |= {"null_95": None, "ratio": None, "p_value": None, "divergence_labels": 3}
        cohort["prevalence"]["site-1"] = None
        cohort["sizes"] = {**cohort["sizes"], "site-1": None}
    found = tables.comparison_tables(parsed(comparison))
    assert [c.title for c in found["audit-divergence"].columns][-1] == "Observed D"
    assert any("no p value" in note for note in found["audit-divergence"].notes)
    assert any("fewer labels" in note for note in found["audit-divergence"].notes)
    assert found["audit-prevalence-train-pairs"].cells[0][2] == "no data"
    assert "site-1 no data" in found["audit-prevalence-train-pairs"].notes[1]


def test_a_strategy_without_weights_shows_no_data(comparison: Value) -> None:
    comparison["weights"] = [{"site-0": None}]
    table = tables.comparison_weights(parsed(comparison))
    assert table.cells[0][1] == "no data"


def test_a_site_without_a_weight_has_weight_0(comparison: Value) -> None:
    comparison["weights"] = [{"site-0": 1.0}]
    table = tables.comparison_weights(parsed(comparison))
    assert table.cells == [["0", "1.0000", *["0.0000"] * 5]]


def test_without_an_audit_there_are_no_audit_tables(comparison: Value) -> None:
    comparison["audit"] = None
    found = tables.comparison_tables(parsed(comparison))
    assert not [name for name in found if name.startswith("audit")]
