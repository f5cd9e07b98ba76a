"""The comparison from results that are made up here, so that every number is known."""

from dataclasses import replace
from typing import Any

import pytest

from fedpref.config import RunConfig
from fedpref.errors import DataError
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.experiment.arms import MATCHED as ARMS
from fedpref.experiment.arms import strategy_arms
from fedpref.experiment.collect import ReportResult, RoundResult
from fedpref.experiment.results import compare_arms, compare_strategies

# Reports a1 and a2 are at home at site a, b1 at site b.
HOMES = {"a1": "a", "a2": "a", "b1": "b"}


def result(counts: dict[str, tuple[int, int, int]], preferred: int = 1, **more: Any) -> RoundResult:
    reports = {
        name: ReportResult(
            HOMES[name],
            f"patient-{name}",
            EvaluationCounts(
                reports=1,
                tp=tp,
                fp=fp,
                fn=fn,
                disease_tp=tp,
                projected=1,
                strict=1,
                empty_targets=0,
            ),
        )
        for name, (tp, fp, fn) in counts.items()
    }
    record = {
        "bytes": {"down": 10, "up": 20},
        "seconds": {"total": 1.5},
        "sites": {"a": {"weight": 0.75}, "b": {"weight": 0.25}},
    }
    return replace(
        RoundResult(reports, EvaluationCounts(pairs=4, pairs_preferred=preferred), 7, record),
        **more,
    )


# Site a: 2·3/(2·3+1+1) = 0.75; site b: 2·1/(2·1+0+2) = 0.5.
FAIR = {"a1": (2, 1, 0), "a2": (1, 0, 1), "b1": (1, 0, 2)}
# Site a: 0.75; site b: 2·2/(2·2+0+1) = 0.8.
GOOD = {"a1": (2, 1, 0), "a2": (1, 0, 1), "b1": (2, 0, 1)}
# Site a: 2·1/(2·1+0+3) = 0.4; site b: 0.5.
POOR = {"a1": (1, 0, 1), "a2": (0, 0, 2), "b1": (1, 0, 2)}


def runs(*rounds: dict[str, tuple[int, int, int]]) -> list[list[RoundResult]]:
    return [[result(counts) for counts in rounds]]


def test_scores_selection_and_effects_are_those_of_the_counts() -> None:
    found = compare_arms(
        {"fedpref": runs(FAIR, GOOD), "local": runs(POOR, POOR), "central": runs(GOOD, GOOD)},
        draws=200,
    )
    fedpref = found["arms"]["fedpref"]["rounds"]
    assert [row["client_mean"] for row in fedpref] == pytest.approx([0.625, 0.775])
    assert [row["worst_site"] for row in fedpref] == pytest.approx([0.5, 0.75])
    assert fedpref[0]["sites"] == {"a": pytest.approx(0.75), "b": pytest.approx(0.5)}
    # Pooled: tp 4, fp 1, fn 3.
    assert fedpref[0]["pooled"] == pytest.approx(8 / 12)
    assert fedpref[0]["preference_accuracy"] == 0.25
    assert found["selected_round"] == 1
    effects = {
        (e["a"], e["b"], e["round"], e.get("statistic") or e["site"]): e["effect"]
        for e in found["effects"]
    }
    assert effects["fedpref", "local", 1, "client_mean"] == pytest.approx(0.775 - 0.45)
    assert effects["fedpref", "local", 1, "worst_site"] == pytest.approx(0.75 - 0.4)
    assert effects["central", "fedpref", 1, "client_mean"] == pytest.approx(0)
    assert effects["central", "fedpref", 0, "worst_site"] == pytest.approx(0.25)
    assert effects["fedpref", "local", 1, "b"] == pytest.approx(0.3)
    assert found["weights"] == [{"a": 0.75, "b": 0.25}] * 2
    assert found["arms"]["local"]["bytes"] == {"down": 20, "up": 40}
    assert found["arms"]["central"]["seconds"] == 3.0


def test_one_patient_at_a_site_has_no_interval_but_a_reason() -> None:
    found = compare_arms({arm: runs(FAIR) for arm in ARMS}, draws=50)
    row = next(e for e in found["effects"] if e.get("site") == "b")
    assert row["low"] is None
    assert row["degenerate"]


def test_scores_are_averaged_over_seeds() -> None:
    two = [[result(FAIR)], [result(GOOD, preferred=3)]]
    found = compare_arms(dict.fromkeys(ARMS, two), draws=50)
    row = found["arms"]["fedpref"]["rounds"][0]
    assert row["client_mean"] == pytest.approx((0.625 + 0.775) / 2)
    # The minimum is taken per seed, then averaged.
    assert row["worst_site"] == pytest.approx((0.5 + 0.75) / 2)
    assert row["preference_accuracy"] == pytest.approx(0.5)
    assert [seed["worst_site"] for seed in row["by_seed"]] == pytest.approx([0.5, 0.75])


def test_every_arm_gives_every_pair_the_same_exposure() -> None:
    found = compare_arms({arm: runs(FAIR, FAIR) for arm in ARMS}, draws=20)
    expected = {"pairs": 7, "sft": 1, "dpo": 1}
    assert [found["arms"][arm]["exposure"] for arm in ARMS] == [expected] * 3


@pytest.mark.parametrize("arm", ["local", "central"])
def test_another_exposure_is_refused_with_both_numbers(arm: str) -> None:
    results: dict[Any, Any] = {name: runs(FAIR, FAIR) for name in ARMS}
    results[arm] = [[result(FAIR), result(FAIR, trained_pairs=6)]]
    with pytest.raises(DataError, match=f"arm {arm} trained 6 pairs in round 1, fedpref 7"):
        compare_arms(results, draws=20)


def test_arms_on_other_reports_are_refused_with_both_numbers() -> None:
    results: dict[Any, Any] = {name: runs(FAIR) for name in ARMS}
    results["local"] = runs({name: FAIR[name] for name in ("a1", "b1")})
    with pytest.raises(
        DataError, match="arm local lacks 1 of the 3 development reports of fedpref"
    ):
        compare_arms(results, draws=20)


def test_preferences_over_other_pairs_and_withheld_sites_are_told() -> None:
    results: dict[Any, Any] = {name: runs(FAIR) for name in ARMS}
    assert compare_arms(results, draws=20)["notes"] == []
    results["central"] = [[result(FAIR, pairs=EvaluationCounts(pairs=6, pairs_preferred=2))]]
    results["fedpref"] = [[result(FAIR, withheld=("c",))]]
    notes = compare_arms(results, draws=20)["notes"]
    assert [("site c" in note, "6 held-out pairs" in note) for note in notes] == [
        (True, False),
        (False, True),
    ]


def test_without_any_finding_no_round_can_be_selected() -> None:
    nothing = runs(dict.fromkeys(FAIR, (0, 0, 0)))
    with pytest.raises(DataError, match="no round has a client mean"):
        compare_arms(dict.fromkeys(ARMS, nothing), draws=20)


def test_reports_that_fedpref_withholds_count_in_no_arm() -> None:
    fewer = runs({name: FAIR[name] for name in ("a1", "a2")})
    found = compare_arms({"fedpref": fewer, "local": fewer, "central": runs(FAIR)}, draws=20)
    assert found["arms"]["central"]["rounds"][0]["sites"] == {"a": pytest.approx(0.75)}


STRATEGIES = strategy_arms("pair-fedavg,uniform,ffa", RunConfig())
ROOTS = {"a": {"weight": 0.75, "update": "1" * 64}, "b": {"weight": 0.25, "update": "2" * 64}}


def of_strategy(
    *rounds: dict[str, tuple[int, int, int]], sites: dict[str, Any] = ROOTS
) -> list[list[RoundResult]]:
    [found] = runs(*rounds)
    return [
        [replace(r, record=r.record | {"sites": sites, "strategy": {"beta": 1.0}}) for r in found]
    ]


def test_strategies_are_compared_at_the_last_round_against_the_first() -> None:
    # The first is better at round 0: that selects nothing.
    results = {
        "uniform": of_strategy(FAIR, GOOD),
        "pair-fedavg": of_strategy(GOOD, FAIR),
        "ffa": of_strategy(POOR, POOR),
    }
    found = compare_strategies(results, STRATEGIES, draws=50)
    assert found["selected_round"] == 1
    assert list(found["arms"]) == ["pair-fedavg", "uniform", "ffa"]
    effects = {
        (e["a"], e["b"], e["round"], e.get("statistic") or e["site"]): e["effect"]
        for e in found["effects"]
    }
    assert effects["uniform", "pair-fedavg", 1, "client_mean"] == pytest.approx(0.775 - 0.625)
    assert effects["ffa", "pair-fedavg", 1, "worst_site"] == pytest.approx(0.4 - 0.5)
    assert {b for _, b, *_ in effects} == {"pair-fedavg"}
    last = {arm: value["rounds"][1] for arm, value in found["arms"].items()}
    # |0.75 − 0.5|/2, |0.75 − 0.8|/2, |0.4 − 0.5|/2.
    assert [row["site_spread"] for row in last.values()] == pytest.approx([0.125, 0.025, 0.05])
    assert found["arms"]["uniform"]["weights"] == [{"a": 0.75, "b": 0.25}] * 2
    assert found["arms"]["uniform"]["trace"] == [{"beta": 1.0}] * 2
    assert found["arms"]["ffa"]["bytes"] == {"down": 20, "up": 40}


def test_the_spread_is_taken_per_seed_and_then_averaged() -> None:
    two = [of_strategy(FAIR)[0], of_strategy(GOOD)[0]]
    found = compare_strategies(dict.fromkeys(("pair-fedavg", "uniform", "ffa"), two), STRATEGIES)
    assert found["arms"]["ffa"]["rounds"][0]["site_spread"] == pytest.approx((0.125 + 0.025) / 2)


def test_who_shares_the_site_roots_is_recorded_and_asserted() -> None:
    other = ROOTS | {"b": ROOTS["b"] | {"update": "3" * 64}}
    results = {
        "pair-fedavg": of_strategy(FAIR),
        "uniform": of_strategy(GOOD),
        "ffa": of_strategy(POOR, sites=other),
    }
    found = compare_strategies(results, STRATEGIES, draws=20)
    same = {arm: value["strategy"]["same_roots"] for arm, value in found["arms"].items()}
    assert same == {"pair-fedavg": True, "uniform": True, "ffa": False}
    assert found["notes"] == [
        "ffa does not start from the site roots of pair-fedavg: its strategy changes how sites "
        "train, in round 0 as well"
    ]
    results["uniform"] = of_strategy(GOOD, sites=other)
    with pytest.raises(DataError, match=r"uniform .*333333333333, pair-fedavg .*222222222222") as e:
        compare_strategies(results, STRATEGIES, draws=20)
    assert e.value.site == "b"
    # What an older run did not record is not claimed.
    bare = {site: {"weight": 0.5} for site in ROOTS}
    results["uniform"] = of_strategy(GOOD, sites=bare)
    found = compare_strategies(results, STRATEGIES, draws=20)
    assert found["arms"]["uniform"]["strategy"]["same_roots"] is None
