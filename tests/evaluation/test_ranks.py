"""Ranks over partitions: Demšar's worked example, invariants, and every case without a test."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.evaluation.ranks import critical_difference, rank_strategies

# Demšar (JMLR 7, 2006), Table 6: the AUC of four variants of C4.5 (columns: C4.5, C4.5+m, C4.5+cf,
# C4.5+m+cf) on 14 data sets. In "voting" the last two are ranked 2 and 3 there, although both are
# printed as .975; a fourth digit says so here.
DEMSAR = [
    [0.763, 0.768, 0.771, 0.798],  # adult
    [0.599, 0.591, 0.590, 0.569],  # breast cancer
    [0.954, 0.971, 0.968, 0.967],  # breast cancer wisconsin
    [0.628, 0.661, 0.654, 0.657],  # cmc
    [0.882, 0.888, 0.886, 0.898],  # ionosphere
    [0.936, 0.931, 0.916, 0.931],  # iris: a tie of two
    [0.661, 0.668, 0.609, 0.685],  # liver disorders
    [0.583, 0.583, 0.563, 0.625],  # lung cancer: a tie of two
    [0.775, 0.838, 0.866, 0.875],  # lymphography
    [1.000, 1.000, 1.000, 1.000],  # mushroom: a tie of four
    [0.940, 0.962, 0.965, 0.962],  # primary tumor: a tie of two
    [0.619, 0.666, 0.614, 0.669],  # rheum
    [0.972, 0.981, 0.9752, 0.9751],  # voting
    [0.957, 0.978, 0.946, 0.970],  # wine
]


def test_average_ranks_of_demsar() -> None:
    result = rank_strategies(DEMSAR)
    assert result.average == pytest.approx((3.143, 2.000, 2.893, 1.964), abs=5e-4)
    assert result.ranks[5] == (1, 2.5, 4, 2.5)
    assert result.ranks[9] == (2.5, 2.5, 2.5, 2.5)
    assert result.partitions == 14
    assert result.degenerate is None


def test_friedman_of_demsar() -> None:
    """The paper's 9.28 has no correction for ties: it is divided by 1 − Σ(t³ − t)/(N·k·(k² − 1)).

    Three ties of two (6 each) and one of four (60) are 78; N·k·(k² − 1) = 14·4·15 = 840.
    """
    result = rank_strategies(DEMSAR)
    assert result.friedman is not None
    assert result.friedman.statistic * (1 - 78 / 840) == pytest.approx(9.28, abs=0.01)
    assert result.friedman.degrees == 3
    # The chi-square survival function with 3 degrees of freedom at 9.28 / 0.90714 = 10.23.
    assert result.friedman.p_value == pytest.approx(0.0167, abs=1e-4)


def test_nemenyi_of_demsar() -> None:
    # 2.569·sqrt(4·5/(6·14)) = 1.25; at 0.10: 2.291·sqrt(…) = 1.12.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=5e-3)
    at_5, at_10 = rank_strategies(DEMSAR), rank_strategies(DEMSAR, alpha=0.10)
    assert at_5.nemenyi is not None
    assert at_10.nemenyi is not None
    assert at_5.nemenyi.critical_difference == pytest.approx(1.25, abs=5e-3)
    # "Not powerful enough" at 5 %; at 10 % C4.5 is worse than C4.5+m and C4.5+m+cf.
    assert [p for p in at_5.nemenyi.pairs if p.p_value < 0.05] == []
    found = {(p.a, p.b) for p in at_10.nemenyi.pairs if p.p_value < 0.10}
    assert found == {(0, 1), (0, 3)}
    assert at_5.nemenyi.pairs[0].difference == pytest.approx(3.143 - 2.0, abs=5e-4)


@pytest.mark.parametrize(
    ("strategies", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (8, 3.031), (10, 3.164)]
)
def test_critical_values_of_demsars_table_5(strategies: int, q: float) -> None:
    # With N = k(k+1)/6 the factor is 1; it need not be a whole number for the formula.
    partitions = strategies * (strategies + 1) / 6
    found = critical_difference(strategies, partitions)  # type: ignore[arg-type]
    assert found == pytest.approx(q, abs=1.1e-3)


def test_friedman_by_hand() -> None:
    # Three partitions, one order: rank sums 3, 6, 9, so 12/(3·3·4)·(9 + 36 + 81) − 3·3·4 = 6.
    result = rank_strategies([[0.9, 0.5, 0.1]] * 3)
    assert result.friedman is not None
    assert result.friedman.statistic == pytest.approx(6)
    assert result.friedman.p_value == pytest.approx(np.exp(-3))  # chi-square, 2 degrees: e^(−x/2)
    assert result.average == (1, 2, 3)


def test_rounding_errors_are_ties() -> None:
    assert rank_strategies([[0.1 + 0.2, 0.3, 0.2]]).ranks == ((1.5, 1.5, 3),)


def test_a_partition_without_a_score_is_left_out() -> None:
    whole = rank_strategies(DEMSAR)
    holed = rank_strategies([*DEMSAR, [None, 0.1, 0.2, 0.3]])
    assert holed.ranks[-1] is None
    assert (holed.average, holed.friedman, holed.nemenyi) == (
        whole.average,
        whole.friedman,
        whole.nemenyi,
    )
    assert holed.partitions == 14


@pytest.mark.parametrize(
    ("scores", "reason", "average"),
    [
        ([], "no partition", None),
        ([[None, 0.1, 0.2], [0.1, None, 0.2]], "2 left out", None),
        ([[0.1, 0.2, 0.3]], "only one partition", (3, 2, 1)),
        ([[0.1, 0.2, 0.3], [0.1, 0.2, None]], "only one partition (1 left out", (3, 2, 1)),
        ([[0.1, 0.2], [0.2, 0.1], [0.1, 0.2]], "three strategies", (5 / 3, 4 / 3)),
        ([[0.1], [0.2]], "three strategies", (1,)),
        ([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7]], "equal in every partition", (2, 2, 2)),
    ],
)
def test_no_tests_but_a_reason(
    scores: list[list[float | None]], reason: str, average: tuple[float, ...] | None
) -> None:
    result = rank_strategies(scores)
    assert result.degenerate is not None
    assert reason in result.degenerate
    assert result.friedman is None
    assert result.nemenyi is None
    assert result.average == (None if average is None else pytest.approx(average))


@pytest.mark.parametrize(
    ("scores", "alpha", "message"),
    [
        ([[0.1, 0.2], [0.1]], 0.05, "partitions have scores"),
        ([[], []], 0.05, "no strategy"),
        ([[0.1, float("nan")]], 0.05, "finite"),
        ([[0.1, float("inf")]], 0.05, "finite"),
        ([[None, float("nan")]], 0.05, "finite"),
        ([[0.1, 0.2]], 0.0, "alpha"),
        ([[0.1, 0.2]], float("nan"), "alpha"),
    ],
)
def test_bad_input(scores: list[list[float | None]], alpha: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_strategies(scores, alpha=alpha)


# Tenths, so that ties are frequent.
TENTHS = st.integers(0, 10).map(lambda n: n / 10)
TABLES = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        st.lists(TENTHS | st.none(), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@settings(deadline=None)
@given(TABLES)
def test_ranks_sum_to_a_constant_and_nothing_is_nan(scores: list[list[float | None]]) -> None:
    result = rank_strategies(scores)
    k = len(scores[0])
    for row, ranks in zip(scores, result.ranks, strict=True):
        assert (ranks is None) == (None in row)
        assert ranks is None or sum(ranks) == pytest.approx(k * (k + 1) / 2)
    assert (result.average is None) == (result.partitions == 0)
    tests = (result.friedman, result.nemenyi)
    assert [test is None for test in tests] == [result.degenerate is not None] * 2
    if result.friedman is not None and result.nemenyi is not None:
        assert result.friedman.statistic >= 0
        assert 0 <= result.friedman.p_value <= 1
        assert len(result.nemenyi.pairs) == k * (k - 1) // 2
        for pair in result.nemenyi.pairs:
            assert 0 <= pair.p_value <= 1
            # The p-value and the critical difference say the same.
            beyond = abs(pair.difference) - result.nemenyi.critical_difference
            assert abs(beyond) < 1e-6 or (beyond > 0) == (pair.p_value < 0.05)


@settings(deadline=None, max_examples=50)
@given(TABLES, st.randoms(use_true_random=False))
def test_the_order_of_partitions_and_strategies_does_not_matter(
    scores: list[list[float | None]], random: Random
) -> None:
    rows, columns = list(range(len(scores))), list(range(len(scores[0])))
    random.shuffle(rows)
    random.shuffle(columns)
    one = rank_strategies(scores)
    two = rank_strategies([[scores[r][c] for c in columns] for r in rows])
    assert (one.degenerate is None) == (two.degenerate is None)
    if one.average is not None:
        assert two.average == pytest.approx([one.average[c] for c in columns])
    if one.friedman is not None and two.friedman is not None:
        assert two.friedman.statistic == pytest.approx(one.friedman.statistic)


@settings(deadline=None, max_examples=50)
@given(TABLES)
def test_only_the_order_of_scores_matters(scores: list[list[float | None]]) -> None:
    stretched = [[None if x is None else x**3 + 5 for x in row] for row in scores]
    assert rank_strategies(stretched) == rank_strategies(scores)
