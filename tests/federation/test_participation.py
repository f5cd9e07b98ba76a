"""Who is asked in a round: sizes by hand, and what a fair and repeatable draw must keep."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedpref.errors import ConfigError
from fedpref.federation.participation import sample_sites, sample_size

NAMES = st.lists(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True), unique=True)
FRACTION = st.floats(0.0, 1.0, exclude_min=True)
SEED = st.integers(0, 2**63 - 1)
ROUND = st.integers(0, 100)


@pytest.mark.parametrize(
    ("sites", "fraction", "at_least", "size"),
    [
        (6, 0.5, 1, 3),
        (5, 0.5, 1, 3),  # half up
        (6, 0.4, 1, 2),
        (100, 0.29, 1, 29),  # 0.29 · 100 is 28.999…96 in floating point
        (30, 0.1, 1, 3),  # and 0.1 · 30 is 3.000…4
        (6, 0.01, 1, 1),
        (6, 0.01, 4, 4),
        (6, 1.0, 2, 6),
        (3, 0.5, 9, 3),
        (1, 0.1, 0, 1),
        (0, 0.5, 1, 0),
    ],
)
def test_the_size_by_hand(sites: int, fraction: float, at_least: int, size: int) -> None:
    assert sample_size(sites, fraction=fraction, at_least=at_least) == size


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.0001, float("nan"), float("inf")])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="key fraction"):
        sample_sites(["a"], fraction=fraction, seed=1, round_=0)


def test_a_draw_is_pinned() -> None:
    # A run that is resumed after an update of fedpref must ask the same sites.
    sites = [f"site-{i}" for i in range(1, 7)]
    drawn = [sample_sites(sites, fraction=0.5, seed=20260713, round_=t) for t in range(3)]
    assert drawn == [
        ("site-1", "site-3", "site-6"),
        ("site-1", "site-5", "site-6"),
        ("site-1", "site-2", "site-5"),
    ]


@settings(deadline=None)
@given(NAMES, FRACTION, SEED, ROUND, st.integers(0, 12), st.randoms())
def test_a_draw_is_sorted_distinct_repeatable_and_blind_to_order(
    names: list[str], fraction: float, seed: int, round_: int, at_least: int, random: object
) -> None:
    drawn = sample_sites(names, fraction=fraction, seed=seed, round_=round_, at_least=at_least)
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(names)
    assert len(drawn) >= min(len(names), max(1, at_least))
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = sample_sites(shuffled, fraction=fraction, seed=seed, round_=round_, at_least=at_least)
    assert again == drawn


@settings(deadline=None)
@given(NAMES, SEED, ROUND)
def test_the_whole_is_everyone(names: list[str], seed: int, round_: int) -> None:
    assert sample_sites(names, fraction=1.0, seed=seed, round_=round_) == tuple(sorted(names))


@settings(deadline=None)
@given(NAMES.filter(lambda names: len(names) > 1), SEED, ROUND, st.data())
def test_a_larger_draw_holds_the_smaller_one_and_an_absent_site_changes_no_other(
    names: list[str], seed: int, round_: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(names) - 1))

    def draw(sites: list[str], k: int) -> set[str]:
        return set(sample_sites(sites, fraction=1e-9, seed=seed, round_=round_, at_least=k))

    drawn = draw(names, size)
    assert drawn < draw(names, size + 1)
    absent = next(name for name in names if name not in drawn)
    assert draw([name for name in names if name != absent], size) == drawn


@pytest.mark.parametrize("seed", [0, 20260713])
def test_over_rounds_every_set_of_sites_is_equally_likely(seed: int) -> None:
    sites = [f"site-{i}" for i in range(5)]
    seen = Counter(sample_sites(sites, fraction=0.4, seed=seed, round_=t) for t in range(5000))
    assert set(seen) == set(combinations(sites, 2))
    # Fixed seeds: the test either always passes or never does.
    assert chisquare(list(seen.values())).pvalue > 0.01


def test_rounds_and_seeds_are_independent() -> None:
    sites = [f"site-{i}" for i in range(4)]

    def both(seed: int, lag: int, other: int) -> Counter[tuple[bool, bool]]:
        def has(seed: int, t: int) -> bool:
            return "site-0" in sample_sites(sites, fraction=0.5, seed=seed, round_=t)

        return Counter((has(seed, t), has(other, t + lag)) for t in range(4000))

    for table in (both(1, 1, 1), both(1, 0, 2)):
        assert chisquare(list(table.values())).pvalue > 0.01
        assert len(table) == 4
