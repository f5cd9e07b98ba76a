"""What a strategy said of the rounds, and the figure of the weights."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fedpref.report.common import weights_table
from fedpref.report.comparison import comparison_said, comparison_tables
from fedpref.report.plain import run_said, run_tables
from fedpref.report.result import Comparison, Run, RunConfigFile
from fedpref.report.trace import Said, trace_tables
from fedpref.report.weights_figure import weights_by_round

Value = dict[str, Any]
MakeTrace = Callable[[list[str]], tuple[list[Value], list[Value]]]


def test_feddraw_by_round_and_by_site(make_trace: MakeTrace) -> None:
    trace, weights = make_trace(["a", "b"])
    rounds, sites = trace_tables({"feddraw": Said(trace, weights)}, ["a", "b"])
    assert [column.title for column in rounds.columns] == ["Round", "γ", "β"]
    assert rounds.cells[1] == ["1", "0.3679", "9.0000"]
    assert "γ" in rounds.notes[0]
    assert rounds.to_csv().splitlines()[0] == "round,gamma,beta"
    titles = ["Round", "Site", "Size", "Similarity", "Reputation", "Weight"]
    assert [column.title for column in sites.columns] == titles
    assert len(sites.rows) == 8
    # By name, not by place: the reputations are in another order. 1 : 1 + 3 = 0.2 : 0.8.
    assert sites.cells[1] == ["0", "b", "0.110000", "0.999110", "0.110000", "0.8000"]
    assert sites.cells[-1] == ["3", "b", "0.110000", "0.999110", "0.110000", "0.5000"]


def test_a_refused_site_and_an_unknown_strategy() -> None:
    trace: list[Value] = [
        {"my/loss": None, "per_site": {"a": 1.5}, "other": (1.0, 2.0, 3.0)},
        {"my/loss": 0.25, "per_site": {"a": 2.5, "b": None}},
    ]
    rounds, sites = trace_tables({"mine": Said(trace, [{"a": 1.0}, {}])}, ["a", "b"])
    assert rounds.cells == [["0", "no data"], ["1", "0.2500"]]
    assert rounds.columns[1].title == "my/loss"
    assert rounds.notes == ()
    assert sites.cells[:2] == [
        ["0", "a", "1.500000", "1.0000"],
        ["0", "b", "no data", "no data"],
    ]
    # Neither is a file's name.
    assert (rounds.name, sites.name) == ("strategy", "strategy-sites")


def test_several_strategies_stand_in_one_table_and_silent_ones_do_not(
    make_trace: MakeTrace,
) -> None:
    trace, weights = make_trace(["a", "b"])
    silent = Said([{}] * 4, weights)
    said = {"uniform": silent, "feddraw": Said(trace, weights)}
    rounds, sites = trace_tables(said, ["a", "b"])
    assert rounds.cells[0][:2] == ["0", "feddraw"]
    assert (len(rounds.rows), len(sites.rows)) == (4, 8)
    assert [t.rows for t in trace_tables({"uniform": silent}, ["a", "b"])] == [(), ()]


def test_where_the_two_kinds_of_report_have_it_from(
    comparison: Value, run_files: tuple[Value, Value], make_trace: MakeTrace
) -> None:
    comparison["trace"], comparison["weights"] = make_trace([f"site-{n}" for n in range(6)])
    result = Comparison.model_validate_json(json.dumps(comparison))
    tables = comparison_tables(result)
    assert len(tables["strategy-sites"].rows) == 24
    assert tables["strategy"].caption == "FedPref's run with the first seed."
    assert comparison_said(result)["FedPref"].weights == result.weights
    summary, config = run_files
    # Site c was refused in round 2, and so is not in what the strategy said.
    trace, _ = make_trace(["site-a", "site-b"])
    for record, said in zip(summary["rounds"], trace, strict=True):
        record["strategy"] = said
    run = Run.model_validate_json(json.dumps(summary))
    found = run_tables(run, RunConfigFile.model_validate_json(json.dumps(config)))
    assert found["strategy-sites"].cells[-1][:3] == ["3", "site-d", "no data"]
    assert run_said(run)["pair-fedavg"].weights[2]["site-c"] == 0.0
    comparison["trace"] = []
    old = Comparison.model_validate_json(json.dumps(comparison))
    assert not {"strategy", "strategy-sites"} & comparison_tables(old).keys()


def test_weights_of_several_strategies_stand_in_one_table(make_trace: MakeTrace) -> None:
    _, weights = make_trace(["a", "b"])
    one = weights_table({"feddraw": weights}, ["a", "b"])
    assert one.cells[0] == ["0", "0.2000", "0.8000"]
    many = weights_table({"median": [{"a": None, "b": None}], "feddraw": weights}, ["a", "b"])
    assert many.cells[:2] == [
        ["0", "median", "no data", "no data"],
        ["0", "feddraw", "0.2000", "0.8000"],
    ]


def test_weights_are_drawn_if_they_change(make_trace: MakeTrace) -> None:
    pytest.importorskip("matplotlib")
    sites = [f"s{n}" for n in range(9)]
    trace, weights = make_trace(sites)
    [picture] = weights_by_round(
        {"A": Said(trace, weights), "same": Said([], weights[:1] * 4)}, sites
    )
    assert len(picture.panels) == 1
    assert all(f">{site}<" in picture.panels[0] for site in sites)
    assert weights_by_round({"same": Said([], weights[:1] * 4)}, sites) == []
    nothing: list[Value] = [dict.fromkeys(sites), dict.fromkeys(sites)]
    assert weights_by_round({"median": Said([], nothing)}, sites) == []
    gap = [weights[0], dict.fromkeys(sites), weights[2]]
    assert len(weights_by_round({"gap": Said([], gap)}, [*sites, "late"])) == 1
