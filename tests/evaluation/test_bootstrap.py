"""The paired cluster bootstrap: by hand, against a plain loop, and where it must refuse."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.evaluation import bootstrap, paired_cluster_bootstrap
from fedpref.evaluation.bootstrap import counts_array, draw_weights, stratum_generator

STATISTICS = ("client_mean", "worst_site", "global")


def cohort(
    seed: int, *, seeds: int = 3, reports: int = 120, sites: int = 4
) -> tuple[Any, Any, Any, Any]:
    """Two arms of random counts; arm a is the better one; some patients have several reports."""
    rng = np.random.default_rng(seed)
    b = rng.integers(0, 4, size=(seeds, reports, 3))
    a = b + np.stack(
        [rng.integers(0, 2, size=(seeds, reports)), *np.zeros((2, seeds, reports), int)], axis=2
    )
    site = rng.integers(0, sites, size=reports)
    patient = rng.integers(0, reports // 2, size=reports)
    return a, b, site, patient


@pytest.fixture(scope="module")
def plain() -> Any:
    """benchmarks/bootstrap.py: the same draws in plain Python, report by report."""
    path = Path(__file__).parents[2] / "benchmarks" / "bootstrap.py"
    spec = importlib.util.spec_from_file_location("bootstrap_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("statistic", STATISTICS)
def test_equals_a_plain_loop(plain: Any, statistic: Any) -> None:
    a, b, site, patient = cohort(1, reports=40, sites=3)
    result = paired_cluster_bootstrap(a, b, site, patient, statistic=statistic, draws=200, seed=5)
    strata = plain.loop_strata(site, patient, statistic)
    loop = plain.loop_bootstrap(a, b, strata, statistic, 200, 5)
    low, high = np.percentile(loop, [2.5, 97.5])
    rows = [[row for person in people for row in person] for people in strata]
    effect = plain.loop_value(a, rows, statistic) - plain.loop_value(b, rows, statistic)
    assert result.effect == pytest.approx(effect, abs=1e-12)
    assert (result.low, result.high) == pytest.approx((low, high), abs=1e-12)
    assert result.degenerate is None


def test_point_effects_by_hand() -> None:
    # Site x: a 2·3/(6+1+1) = 0.75, b 2·1/(2+1+3) = 1/3; site y: a 1/(1+0.5) = 2/3, b 1.
    a = [[[2, 0, 1], [1, 1, 0], [1, 0, 1]]]
    b = [[[1, 0, 2], [0, 1, 1], [2, 0, 0]]]
    site, patient = ["x", "x", "y"], ["p", "q", "r"]
    result = {
        s: paired_cluster_bootstrap(a, b, site, patient, statistic=s, draws=50, seed=0).effect
        for s in ("client_mean", "worst_site", "global")
    }
    assert result["client_mean"] == pytest.approx((0.75 + 2 / 3) / 2 - (1 / 3 + 1) / 2)
    assert result["worst_site"] == pytest.approx(2 / 3 - 1 / 3)
    assert result["global"] == pytest.approx(8 / 11 - 6 / 10)


def test_worst_site_is_taken_per_seed() -> None:
    # The worst site changes with the seed: mean of minima 0, minimum of means 0.5.
    good, bad = [1, 0, 0], [0, 1, 1]
    a = [[good, bad], [bad, good]]
    b = [[good, good], [good, good]]
    result = paired_cluster_bootstrap(a, b, [0, 1], [0, 1], statistic="worst_site", seed=0)
    assert result.effect == -1.0


def test_sides_swap_exactly() -> None:
    a, b, site, patient = cohort(2)
    forward = paired_cluster_bootstrap(a, b, site, patient, draws=500, seed=1)
    backward = paired_cluster_bootstrap(b, a, site, patient, draws=500, seed=1)
    assert forward.effect == -backward.effect  # type: ignore[operator]
    assert forward.low == pytest.approx(-backward.high, abs=1e-12)  # type: ignore[operator]
    assert forward.low is not None
    assert forward.low > 0  # arm a has more true positives everywhere


def test_pairing_is_used() -> None:
    """Arms that differ by a constant per report have a far narrower interval than either alone."""
    a, b, site, patient = cohort(3, reports=200)
    paired = paired_cluster_bootstrap(a, b, site, patient, draws=2000, seed=1)
    shuffled = np.random.default_rng(0).permutation(200)
    unpaired = paired_cluster_bootstrap(a, b[:, shuffled], site, patient, draws=2000, seed=1)
    assert paired.high - paired.low < 0.8 * (unpaired.high - unpaired.low)  # type: ignore[operator]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_order_of_reports_and_the_batch_size_change_nothing(
    statistic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, site, patient = cohort(4)
    first = paired_cluster_bootstrap(a, b, site, patient, statistic=statistic, draws=300, seed=3)
    order = np.random.default_rng(0).permutation(len(site))
    monkeypatch.setattr(bootstrap, "_BATCH_WEIGHTS", 217)
    second = paired_cluster_bootstrap(
        a[:, order], b[:, order], site[order], patient[order],
        statistic=statistic, draws=300, seed=3,
    )  # fmt: skip
    assert second == first


def test_a_seed_gives_one_result() -> None:
    a, b, site, patient = cohort(5)
    results = [
        paired_cluster_bootstrap(a, b, site, patient, draws=300, seed=seed) for seed in (1, 1, 2)
    ]
    assert results[0] == results[1] != results[2]


def test_global_pools_clusters_without_sites() -> None:
    """One patient at two sites is one cluster globally, two within sites."""
    a, b, _, _ = cohort(6, reports=4)
    site, patient = [0, 0, 1, 1], ["p", "p", "p", "p"]
    assert (
        paired_cluster_bootstrap(a, b, site, patient, statistic="global", seed=0).degenerate
        == "all reports are of one patient"
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
def test_every_draw_has_as_many_patients_as_there_are(patients: int, draws: int, seed: int) -> None:
    weights = draw_weights(stratum_generator(seed, 0), patients, draws)
    assert weights.shape == (draws, patients)
    assert (weights.sum(axis=1) == patients).all()
    rng = stratum_generator(seed, 0)
    parts = np.concatenate(
        [draw_weights(rng, patients, n) for n in (draws // 2, draws - draws // 2)]
    )
    assert (parts == weights).all()


def test_one_patient_with_many_reports_has_no_interval() -> None:
    a, b, _, _ = cohort(7, reports=30)
    result = paired_cluster_bootstrap(a, b, ["s"] * 30, ["p"] * 30, draws=100, seed=0)
    assert result.effect is not None
    assert (result.low, result.high) == (None, None)
    assert result.degenerate == "all reports are of one patient"


def test_one_patient_a_site_has_no_interval() -> None:
    a, b, _, _ = cohort(8, reports=4)
    result = paired_cluster_bootstrap(a, b, [0, 1, 2, 3], list("pqrs"), draws=100, seed=0)
    assert (result.low, result.high, result.degenerate) == (None, None, "all draws are equal")


@pytest.mark.parametrize(("good", "bad"), [([1, 0, 0], [0, 1, 1]), ([1, 0, 0], [1, 0, 0])])
def test_all_right_or_all_wrong_is_no_certainty(good: list[int], bad: list[int]) -> None:
    """20 of 20 against 0 of 20, and equal arms: never an interval of width zero."""
    a, b = [[good] * 20], [[bad] * 20]
    result = paired_cluster_bootstrap(a, b, [0] * 20, range(20), draws=100, seed=0)
    assert result.effect == (0.0 if good == bad else 1.0)
    assert (result.low, result.high, result.degenerate) == (None, None, "all draws are equal")


def test_no_positives_is_no_effect() -> None:
    zero = np.zeros((2, 5, 3), int)
    result = paired_cluster_bootstrap(zero, zero, [0] * 5, range(5), draws=10, seed=0)
    assert result.effect is None
    assert result.degenerate == "an arm has no positives on either side"
    nobody = paired_cluster_bootstrap(zero[:, :0], zero[:, :0], [], [], draws=10, seed=0)
    assert (nobody.effect, nobody.low) == (None, None)


def test_draws_without_positives_are_stated() -> None:
    a, b = np.zeros((1, 2, 3), int), np.zeros((1, 2, 3), int)
    a[0, 0], b[0, 0] = [1, 0, 0], [1, 1, 0]
    result = paired_cluster_bootstrap(a, b, [0, 0], [0, 1], draws=1000, seed=0)
    assert result.effect == pytest.approx(1 / 3)
    assert result.low is None
    assert "of 1000 draws" in (result.degenerate or "")


def test_a_site_without_data_is_left_out() -> None:
    a, b, site, patient = cohort(9)
    a[:, site == 3], b[:, site == 3] = 0, 0
    rows = site != 3
    whole = paired_cluster_bootstrap(a, b, site, patient, draws=200, seed=0)
    part = paired_cluster_bootstrap(
        a[:, rows], b[:, rows], site[rows], patient[rows], draws=200, seed=0
    )
    assert whole == part


def test_bad_input_is_refused() -> None:
    a, b, site, patient = cohort(10)
    call = paired_cluster_bootstrap
    with pytest.raises(ValueError, match="different shapes"):
        call(a, b[:, :-1], site, patient, seed=0)
    with pytest.raises(ValueError, match="different shapes"):
        call(a, b[:-1], site, patient, seed=0)
    with pytest.raises(ValueError, match=r"\(seeds, reports, 3\)"):
        call(a[0], b[0], site, patient, seed=0)
    with pytest.raises(ValueError, match="120 reports"):
        call(a, b, site[:-1], patient, seed=0)
    with pytest.raises(ValueError, match="120 reports"):
        call(a, b, site, patient[:-1], seed=0)
    with pytest.raises(ValueError, match="never negative"):
        call(a, -b, site, patient, seed=0)
    with pytest.raises(ValueError, match="whole numbers"):
        call(a + 0.5, b, site, patient, seed=0)
    with pytest.raises(ValueError, match="finite"):
        call(a * np.nan, b, site, patient, seed=0)
    with pytest.raises(ValueError, match="none of client_mean"):
        call(a, b, site, patient, statistic="median", seed=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one draw"):
        call(a, b, site, patient, draws=0, seed=0)


def test_arms_are_aligned_by_report() -> None:
    runs = [{"r1": (1, 2, 3), "r2": (4, 5, 6)}, {"r2": (1, 1, 1), "r1": (0, 0, 0)}]
    array = counts_array(runs, ["r2", "r1"])
    assert array.tolist() == [[[4, 5, 6], [1, 2, 3]], [[1, 1, 1], [0, 0, 0]]]


def test_arms_with_other_reports_are_refused() -> None:
    with pytest.raises(ValueError, match="lacks 1 of the reports and has 1 others"):
        counts_array([{"r1": (1, 2, 3), "r3": (4, 5, 6)}], ["r1", "r2"])
    with pytest.raises(ValueError, match="twice"):
        counts_array([{"r1": (1, 2, 3)}], ["r1", "r1"])


def test_ten_thousand_draws_of_six_sites_are_quick() -> None:
    a, b, site, patient = cohort(11, reports=1200, sites=6)
    start = time.process_time()
    paired_cluster_bootstrap(a, b, site, patient, draws=10_000, seed=0)
    assert time.process_time() - start < 3.0  # about 0.2 s on one core


@pytest.mark.long
@pytest.mark.parametrize("statistic", ["client_mean", "global"])
def test_coverage_of_the_95_percent_interval(statistic: Any) -> None:
    """600 cohorts with patient effects and a known true difference: 95 % ± 4 standard errors."""
    rng = np.random.default_rng(12)
    patients, rate_a, rate_b, cohorts = 80, 0.7, 0.6, 600

    def arm(probability: Any) -> Any:
        tp = rng.binomial(3, probability)
        return np.stack([tp, 3 - tp, 3 - tp], axis=-1)[None]

    hits = 0
    for number in range(cohorts):
        # Two reports a patient that share a difficulty: F1 = tp / 3 in expectation, exactly rate.
        shift = np.repeat(rng.uniform(-0.25, 0.25, size=2 * patients), 2)
        site = np.repeat([0, 1], 2 * patients)
        patient = np.repeat(np.arange(2 * patients), 2)
        result = paired_cluster_bootstrap(
            arm(rate_a + shift), arm(rate_b + shift), site, patient,
            statistic=statistic, draws=1000, seed=number,
        )  # fmt: skip
        assert result.low is not None
        assert result.high is not None
        hits += result.low <= rate_a - rate_b <= result.high
    assert 0.95 - 4 * (0.95 * 0.05 / cohorts) ** 0.5 <= hits / cohorts <= 0.95 + 0.036
