"""Drawn sizes, small sites, and labels that go to some sites more readily."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.data import allocate, capacities
from fedpref.data.partition import MAX_FACTOR
from fedpref.data.quantity import drawn_shares, small_sites

SHARES = [0.28, 0.22, 0.18, 0.14, 0.10, 0.08]


def labels(rows: int, width: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.Philox(seed)).random((rows, width)) < 0.25


def factors(site: int, factor: float, label: int = 0, width: int = 10) -> np.ndarray:
    result = np.ones((width, len(SHARES)))
    result[label, site] = factor
    return result


def test_without_enrichment_every_bit_is_as_before() -> None:
    """The allocation of 600 rows as it was before there was any enrichment."""
    groups = [i - (i % 7 == 6) for i in range(600)]
    for enrichment in (None, np.ones((10, 6))):
        found = allocate(
            labels(600),
            [28, 22, 18, 14, 10, 8],
            alpha=0.5,
            skew=0.7,
            seed=1,
            groups=groups,
            enrichment=enrichment,
        ).site
        assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest() == (
            "af877b926ec576a25bcaa4a1a35ec3b9b750237b124c93d1dd3cb5a69d519b0c"
        )


@given(
    st.integers(1, 12),
    st.floats(1e-6, 1e6) | st.sampled_from([5e-324, 1e-300, 1e300]),
    st.integers(0, 2**32),
)
def test_drawn_shares_are_a_division(sites: int, concentration: float, seed: int) -> None:
    shares = drawn_shares(sites, concentration, seed=seed)
    assert shares.shape == (sites,)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) <= 0).all()
    assert (shares == drawn_shares(sites, concentration, seed=seed)).all()
    assert capacities(500, shares).sum() == 500


def test_the_concentration_says_how_unequal() -> None:
    """The expected sum of squares of a Dirichlet(a·1) over K sites is (a + 1)/(K·a + 1)."""
    for a in (0.3, 1.0, 10.0):
        draws = [(drawn_shares(6, a, seed=seed) ** 2).sum() for seed in range(2000)]
        assert np.mean(draws) == pytest.approx((a + 1) / (6 * a + 1), rel=0.03)


@pytest.mark.parametrize("concentration", [0, -1, np.nan, np.inf, 1e308])
def test_impossible_concentrations(concentration: float) -> None:
    with pytest.raises(ValueError, match="concentration"):
        drawn_shares(6, concentration, seed=0)
    with pytest.raises(ValueError, match="at least one site"):
        drawn_shares(0, 1.0, seed=0)


def test_small_is_below_an_equal_share() -> None:
    assert small_sites([28, 22, 18, 14, 10, 8]).tolist() == [3, 4, 5]  # an equal share is 16.7
    assert small_sites([3, 2, 1]).tolist() == [2]
    assert small_sites([0.1] * 3).tolist() == []
    assert small_sites([1 / 3, 1 - 2 / 3, 1 / 3]).tolist() == []
    assert small_sites([1]).tolist() == []


@pytest.mark.parametrize("skew", [0, 0.7, 1])
def test_frequency_of_the_enriched_label(skew: float) -> None:
    """A fifth of the rows has the label. Factor 4 at a site of 8 % makes that 4/(1 + 3·0.08) =
    3.226 times as much there, 64.5 % of its rows, whatever the other labels prefer.
    """
    rows = labels(8_000, 3)
    rows[:, 0] = np.arange(8_000) < 1_600
    found = allocate(
        rows, SHARES, alpha=0.5, skew=skew, seed=5, enrichment=factors(5, 4.0, width=3)
    ).site
    assert np.bincount(found).tolist() == capacities(8_000, SHARES).tolist()
    # 413 of 640 rows are expected there, with a standard deviation of about 17.5.
    assert rows[found == 5, 0].sum() == pytest.approx(413, abs=60)


def test_a_site_takes_no_more_than_its_size() -> None:
    rows = np.ones((100, 1), dtype=bool)
    found = allocate(
        rows, SHARES, alpha=0.5, skew=0, seed=5, enrichment=factors(5, MAX_FACTOR, width=1)
    ).site
    assert np.bincount(found).tolist() == [28, 22, 18, 14, 10, 8]


def test_large_groups_without_the_label_do_not_crowd_it_out() -> None:
    """Twenty groups of 30 rows could fill the small site of 50 before a labelled row comes."""
    rows = np.zeros((630, 1), dtype=bool)
    rows[600:] = True
    groups = [*(row // 30 for row in range(600)), *range(1000, 1030)]
    found = allocate(
        rows,
        SHARES,
        alpha=0.5,
        skew=0.7,
        seed=3,
        groups=groups,
        enrichment=factors(5, MAX_FACTOR, width=1),
    ).site
    assert (found[600:] == 5).sum() >= 28


def test_more_factor_more_label_and_other_labels_are_not_touched() -> None:
    rows = labels(3000, 2)
    shares_of_label = [
        rows[
            allocate(
                rows, SHARES, alpha=0.5, skew=0, seed=2, enrichment=factors(4, factor, width=2)
            ).site
            == 4
        ].mean(axis=0)
        for factor in (1.0, 1.5, 2.0, 3.0)
    ]
    wanted, other = np.array(shares_of_label).T
    assert (np.diff(wanted) > 0.04).all()
    assert other == pytest.approx(0.25, abs=0.06)


def test_profiles_are_drawn_as_without_enrichment() -> None:
    plain = allocate(labels(200), SHARES, alpha=0.5, skew=0.7, seed=1)
    found = allocate(
        labels(200), SHARES, alpha=0.5, skew=0.7, seed=1, enrichment=factors(5, 3.0, label=2)
    )
    assert (found.profiles == plain.profiles).all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.integers(0, 1000),
    st.floats(1 / MAX_FACTOR, MAX_FACTOR),
    st.floats(0.05, 20),
    st.floats(0, 1),
)
def test_groups_stay_together_and_sizes_exact(
    groups: list[int], seed: int, factor: float, concentration: float, skew: float
) -> None:
    shares = drawn_shares(6, concentration, seed=seed)
    rows = labels(len(groups))
    enrichment = np.ones((10, 6))
    enrichment[:4, 3:] = factor
    arguments = {"alpha": 0.5, "skew": skew, "seed": seed, "enrichment": enrichment}
    together = allocate(rows, shares, groups=groups, **arguments).site
    for group in set(groups):
        assert len({int(s) for s, g in zip(together, groups, strict=True) if g == group}) == 1
    alone = allocate(rows, shares, **arguments).site
    assert np.bincount(alone, minlength=6).tolist() == capacities(len(groups), shares).tolist()


@pytest.mark.parametrize(
    "enrichment", [np.ones((6, 10)), np.zeros((10, 6)), np.full((10, 6), np.nan), factors(0, 1e9)]
)
def test_bad_enrichment(enrichment: np.ndarray) -> None:
    with pytest.raises(ValueError, match="enrichment"):
        allocate(labels(5), SHARES, alpha=0.5, skew=0.7, seed=0, enrichment=enrichment)
