"""Allocation: exact capacities, whole groups, the case mix that the profiles ask for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.data import allocate, capacities

SHARES = [0.28, 0.22, 0.18, 0.14, 0.10, 0.08]


def labels(rows: int, width: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.Philox(seed)).random((rows, width)) < 0.25


def test_capacities_of_the_paper() -> None:
    assert capacities(4800, SHARES).tolist() == [1344, 1056, 864, 672, 480, 384]


def test_capacities_by_largest_remainder() -> None:
    # 10 rows over 1:1:1 are 3.33 each; the one left over goes to the first of equal remainders.
    assert capacities(10, [1, 1, 1]).tolist() == [4, 3, 3]
    # 7 over .5,.3,.2 are 3.5, 2.1, 1.4: the row left over goes to .5.
    assert capacities(7, [0.5, 0.3, 0.2]).tolist() == [4, 2, 1]


@given(st.integers(0, 5000), st.lists(st.floats(0.01, 10), min_size=1, max_size=12))
def test_capacities_sum_exactly(total: int, shares: list[float]) -> None:
    result = capacities(total, shares)
    assert result.sum() == total
    assert (np.abs(result - total * np.array(shares) / sum(shares)) < 1).all()


def test_sizes_are_exact_and_the_seed_decides() -> None:
    first = allocate(labels(600), SHARES, alpha=0.5, skew=0.7, seed=1)
    again = allocate(labels(600), SHARES, alpha=0.5, skew=0.7, seed=1)
    other = allocate(labels(600), SHARES, alpha=0.5, skew=0.7, seed=2)
    assert np.bincount(first.site).tolist() == capacities(600, SHARES).tolist()
    assert (first.site == again.site).all()
    assert (first.site != other.site).any()


def test_tiny_alpha_and_more_sites_than_is_sensible() -> None:
    for seed in range(20):
        result = allocate(labels(30, 3), np.ones(20), alpha=0.01, skew=0.7, seed=seed)
        assert np.isfinite(result.profiles).all()
        assert np.bincount(result.site, minlength=20).sum() == 30
    empty = allocate(labels(3, 3), np.ones(20), alpha=0.01, skew=1.0, seed=0)
    assert (np.bincount(empty.site, minlength=20) == 0).sum() == 17


@settings(deadline=None)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=60), st.integers(0, 1000))
def test_groups_stay_together(groups: list[int], seed: int) -> None:
    result = allocate(labels(len(groups)), SHARES, alpha=0.5, skew=0.7, seed=seed, groups=groups)
    for group in set(groups):
        members = [site for site, g in zip(result.site, groups, strict=True) if g == group]
        assert len(set(members)) == 1


def test_profiles_are_reused() -> None:
    train = allocate(labels(600), SHARES, alpha=0.5, skew=0.7, seed=1)
    dev = allocate(labels(90), SHARES, alpha=0.5, skew=0.7, seed=2, profiles=train.profiles)
    assert (dev.profiles == train.profiles).all()


def test_skew_one_follows_the_profile() -> None:
    # One label that wants site 1 only, one that wants site 0 only, and room for both.
    rows = np.array([[True, False]] * 5 + [[False, True]] * 5)
    wish = [[0.0, 1.0], [1.0, 0.0]]
    result = allocate(rows, [0.5, 0.5], alpha=1, skew=1, seed=0, profiles=wish)
    assert result.site.tolist() == [1] * 5 + [0] * 5


def test_skew_zero_ignores_the_labels() -> None:
    # Without skew the labels must not matter: two different label matrices, one draw.
    one = allocate(labels(200, seed=1), SHARES, alpha=0.5, skew=0, seed=3)
    two = allocate(labels(200, seed=2), SHARES, alpha=0.5, skew=0, seed=3)
    assert (one.site == two.site).all()


def test_rows_without_labels_have_no_preference() -> None:
    result = allocate(np.zeros((100, 2)), [0.7, 0.3], alpha=0.5, skew=1, seed=0)
    assert np.bincount(result.site).tolist() == [70, 30]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"skew": 1.5}, "skew"),
        ({"alpha": 0}, "alpha"),
        ({"alpha": np.inf}, "alpha"),
        ({"shares": [0, 0]}, "sum to 0"),
        ({"shares": [1, -1]}, "non-negative"),
        ({"profiles": [[1.0]]}, "profiles"),
        ({"profiles": np.full((10, 2), np.nan)}, "profiles"),
        ({"groups": [1, 2]}, "groups"),
        ({"labels": np.zeros(3)}, "labels"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:  # type: ignore[type-arg]
    arguments = {"labels": labels(5), "shares": [1, 1], "alpha": 0.5, "skew": 0.7, "seed": 0}
    arguments |= change
    with pytest.raises(ValueError, match=message):
        allocate(arguments.pop("labels"), arguments.pop("shares"), **arguments)
