"""The verdict of benchmarks/learning.py, on made-up rounds of two seeds and two sites."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "learning.py"


@pytest.fixture(scope="module")
def learning() -> Any:
    spec = importlib.util.spec_from_file_location("learning", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up_round(right: int, *, worse_at_b: int = 0) -> dict[str, Any]:
    """20 reports a site with one finding each, `right` of them found at a, fewer at b."""
    reports: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for site, hits in (("a", right), ("b", right - worse_at_b)):
        rows = [[1, 0, 0] if i < hits else [0, 1, 1] for i in range(20)]
        reports |= {
            f"{site}/r{i}": {"site": site, "patient": f"{site}/p{i}", "counts": row}
            for i, row in enumerate(rows)
        }
        zero = dict.fromkeys(
            ("disease_tp", "disease_fp", "disease_fn", "projected", "strict", "truncated",
             "empty_targets", "empty_with_prediction", "pairs", "pairs_preferred"), 0
        )  # fmt: skip
        tp = sum(row[0] for row in rows)
        counts[site] = {"reports": 20, "tp": tp, "fp": 20 - tp, "fn": 20 - tp, **zero}
    return {
        "pairs": {"a": 3, "b": 2},
        "counts": counts,
        "reports": reports,
        "seconds": {"training": 1.0, "evaluation": 2.0},
    }


def runs(*rounds: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"seed": seed, "rounds": list(rounds)} for seed in (1, 2)]


def test_a_better_last_round_is_a_positive_effect(
    learning: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = learning.summary(runs(made_up_round(8), made_up_round(14)))
    assert result["rounds"][0]["client_mean"] == pytest.approx(0.4)
    assert result["rounds"][1]["client_mean"] == pytest.approx(0.7)
    assert result["effects_over_round_0"][0]["client_mean"]["effect"] == pytest.approx(0.3)
    assert result["dev_reports"] == {"a": 20, "b": 20}
    assert result["selected_round"] == 1
    assert result["seconds"]["evaluation of a round"] == 2.0
    assert learning.holds(result)
    learning.show(result)
    assert "+30.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    "last",
    [
        made_up_round(4),  # worse
        made_up_round(8),  # equal: no interval, so nothing is shown
        made_up_round(9),  # one report better at each site: not certain
        made_up_round(20, worse_at_b=13),  # better mean, but the worst site fell
    ],
)
def test_anything_less_is_not_learning(learning: Any, last: dict[str, Any]) -> None:
    assert not learning.holds(learning.summary(runs(made_up_round(8), last)))


def test_round_0_alone_shows_nothing(learning: Any) -> None:
    assert not learning.holds(learning.summary(runs(made_up_round(8))))
