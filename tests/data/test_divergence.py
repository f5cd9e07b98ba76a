"""Divergence: the paper's figure, hand-worked values, and the permutation test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.data import allocate, case_mix_divergence, permutation_test

# Table 2 (pairs a site) and Table 7 (prevalence in %, one row a label, one column a site).
PAIRS = [717, 591, 556, 486, 297, 314]
PREVALENCE = [
    [34.3, 43.1, 23.6, 7.2, 24.2, 6.7],
    [24.5, 35.5, 41.2, 48.8, 26.6, 43.0],
    [4.5, 4.1, 8.5, 10.7, 11.1, 6.4],
    [13.0, 18.3, 23.0, 35.8, 41.4, 62.7],
    [0.8, 2.7, 2.5, 3.1, 3.0, 5.4],
    [61.5, 50.8, 73.4, 89.5, 62.6, 72.3],
    [15.8, 15.6, 21.4, 35.2, 29.0, 27.1],
    [14.5, 9.1, 19.1, 24.9, 19.2, 23.2],
    [2.5, 1.4, 1.6, 3.3, 1.0, 3.8],
    [5.2, 7.6, 16.5, 23.3, 8.4, 17.8],
]


def test_the_papers_figure() -> None:
    value = case_mix_divergence(PAIRS, np.array(PREVALENCE).T / 100)
    assert round(value, 4) == 0.0882


def test_hand_worked() -> None:
    # Sites of 1 and 3 rows, one label with p = 1 and 0: global 1/4;
    # D² = (1·(3/4)² + 3·(1/4)²)/4 = (9/16 + 3/16)/4 = 3/16.
    assert case_mix_divergence([1, 3], [[1.0], [0.0]]) == pytest.approx((3 / 16) ** 0.5)
    assert case_mix_divergence([5, 7], [[0.2, 0.4], [0.2, 0.4]]) == pytest.approx(0)


def test_an_empty_site_counts_for_nothing() -> None:
    assert case_mix_divergence([1, 3, 0], [[1.0], [0.0], [np.nan]]) == pytest.approx(
        (3 / 16) ** 0.5
    )


@given(st.integers(0, 2**32 - 1))
def test_observed_is_the_divergence_of_the_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, site = rng.random((40, 3)) < 0.4, rng.integers(0, 4, 40)
    sites = np.unique(site)
    prevalence = [labels[site == k].mean(axis=0) for k in sites]
    sizes = [(site == k).sum() for k in sites]
    result = permutation_test(labels, site, permutations=19, seed=0)
    assert result.observed == pytest.approx(case_mix_divergence(sizes, prevalence))


def test_against_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    labels, site = rng.random((50, 4)) < 0.3, np.repeat([0, 1, 2], [25, 15, 10])
    result = permutation_test(labels, site, permutations=400, seed=7)
    null = []
    for _ in range(400):
        shuffled = rng.permutation(site)
        null.append(
            case_mix_divergence(
                [25, 15, 10], [labels[shuffled == k].mean(axis=0) for k in range(3)]
            )
        )
    # Two independent samples of one null distribution.
    assert result.null_95 == pytest.approx(np.quantile(null, 0.95), rel=0.1)


def test_plus_one_p_value_and_ratio() -> None:
    labels = np.repeat([[True], [False]], 100, axis=0)
    skewed = permutation_test(labels, np.repeat([0, 1], 100), seed=1)
    assert skewed.p_value == 1 / 2000
    assert skewed.ratio == pytest.approx(skewed.observed / skewed.null_95)
    # All permutations are as divergent as what is observed.
    alike = permutation_test(np.ones((10, 1)), np.repeat([0, 1], 5), seed=1)
    assert (alike.p_value, alike.observed, alike.ratio) == (1.0, 0.0, None)


def test_an_iid_allocation_is_not_significant_and_a_skewed_one_is() -> None:
    labels = np.random.default_rng(3).random((600, 10)) < 0.25
    shares = [0.28, 0.22, 0.18, 0.14, 0.10, 0.08]
    iid = allocate(labels, shares, alpha=0.5, skew=0, seed=1)
    skewed = allocate(labels, shares, alpha=0.5, skew=0.7, seed=1)
    assert permutation_test(labels, iid.site, seed=2).p_value > 0.05
    assert permutation_test(labels, skewed.site, seed=2).p_value == 0.0005


@pytest.mark.parametrize(
    ("labels", "site"), [(np.zeros((3, 2)), [0, 1]), (np.zeros(3), [0, 1, 2]), ([[]], [])]
)
def test_bad_input(labels: object, site: object) -> None:
    with pytest.raises(ValueError, match="labels"):
        permutation_test(labels, site, seed=0)  # type: ignore[arg-type]
