"""Strategies ranked over several partitions: Friedman's test and Nemenyi's post-hoc. Pure.

A row is a *partition*: one division of the data among sites, with every strategy run on it. Seeds
of one partition are no rows: they share their data, and the tests take rows as independent.
Ranks ask how often one strategy is ahead of another, not by how much, so that partitions of very
different difficulty count alike (Demšar, JMLR 7, 2006, section 3.2; so do FedDRAW's authors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Final

import numpy as np
import scipy  # its modules load when they are used: scipy.stats takes a second
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Scores that differ by less than rounding errors are one and the same value.
_SAME: Final = 1e-12


@dataclass(frozen=True)
class Friedman:
    """The statistic, corrected for ties, its chi-square degrees of freedom, and the p-value.

    `least_p` is the p-value if the ranks were the same in every partition: of so few partitions and
    strategies no result has a lower one.
    """

    statistic: float
    degrees: int
    p_value: float
    least_p: float


@dataclass(frozen=True)
class Pair:
    """Two strategies, by column: the difference of their average ranks, a − b, and its p-value.

    A negative difference means that a is ahead. The p-value holds for all pairs together.
    """

    a: int
    b: int
    difference: float
    p_value: float


@dataclass(frozen=True)
class Nemenyi:
    """Average ranks further apart than `critical_difference` differ at level `alpha`."""

    alpha: float
    critical_difference: float
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Ranking:
    """Ranks of strategies over partitions; 1 is the best, equal scores share their mean rank.

    `ranks` has one tuple a partition, None if a strategy has no score there: such a partition is in
    no average and no test. `average` is None if none is left. `degenerate` says why there are no
    tests (`friedman` and `nemenyi` are then None), else it is None.
    """

    ranks: tuple[tuple[float, ...] | None, ...]
    average: tuple[float, ...] | None
    friedman: Friedman | None
    nemenyi: Nemenyi | None
    degenerate: str | None

    @property
    def partitions(self) -> int:
        """Return the number of partitions that were ranked."""
        return sum(row is not None for row in self.ranks)


def rank_strategies(scores: Sequence[Sequence[float | None]], *, alpha: float = 0.05) -> Ranking:
    """Return the ranks of strategies (columns) over partitions (rows), with both tests.

    Higher scores are better; None is a strategy without a score. Friedman's p-value is that of its
    chi-square approximation, which is rough for few partitions and strategies (Demšar's rule of
    thumb: more than 10 of more than 5). There are no tests, but a reason, over fewer than two
    partitions, for fewer than three strategies, or if all strategies are equal everywhere.
    ValueError for rows of different lengths, no strategy, a score that is not finite, or an alpha
    outside (0, 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha}")
    widths = {len(row) for row in scores}
    if len(widths) > 1:
        raise ValueError(f"the partitions have scores of {sorted(widths)} strategies")
    if widths == {0}:
        raise ValueError("there is no strategy to rank")
    rows = [_ranks(row) for row in scores]
    ranked = np.array([row for row in rows if row is not None], dtype=np.float64)
    average = tuple(float(value) for value in ranked.mean(axis=0)) if len(ranked) else None
    reason = _no_test(len(rows), ranked)
    return Ranking(
        ranks=tuple(rows),
        average=average,
        friedman=None if reason else _friedman(ranked),
        nemenyi=None if reason else _nemenyi(ranked, alpha),
        degenerate=reason,
    )


def critical_difference(strategies: int, partitions: int, alpha: float = 0.05) -> float:
    """Return Nemenyi's `q_α·sqrt(k(k+1)/(6N))`, in ranks (Demšar 2006, section 3.2.2).

    `q_α` is the studentized range of k groups with infinitely many degrees of freedom over √2.
    """
    quantile = float(scipy.stats.studentized_range.ppf(1 - alpha, strategies, np.inf)) / sqrt(2)
    return quantile * _standard_error(strategies, partitions)


def _standard_error(strategies: int, partitions: int) -> float:
    """Return the standard deviation of a difference of average ranks if all are equally good."""
    return sqrt(strategies * (strategies + 1) / (6 * partitions))


def _ranks(row: Sequence[float | None]) -> tuple[float, ...] | None:
    """Return the ranks of one partition's scores, 1 for the highest; None with a missing score."""
    known = [score for score in row if score is not None]
    if not np.isfinite(known).all():
        raise ValueError("scores are finite numbers, or None where there is none")
    if len(known) < len(row):
        return None
    falling = -np.array(known, dtype=np.float64)
    order = np.argsort(falling, kind="stable")
    # A new place starts only where a score is lower than the one before by more than rounding.
    place = np.empty(len(row), dtype=np.int64)
    place[order] = np.cumsum(np.diff(falling[order], prepend=falling[order[0]]) > _SAME)
    return tuple(float(rank) for rank in scipy.stats.rankdata(place))


def _no_test(partitions: int, ranked: Floats) -> str | None:
    """Return why the ranked partitions (N, k) allow no test, or None if they do."""
    left_out = partitions - len(ranked)
    without = f" ({left_out} left out: a strategy has no score there)" if left_out else ""
    if not len(ranked):
        return f"there is no partition to rank{without}"
    if len(ranked) == 1:
        return f"there is only one partition{without}: nothing says whether its ranks would recur"
    if ranked.shape[1] < 3:
        return "the tests are for three strategies or more; read the paired interval of two"
    if (ranked == ranked[0, 0]).all():
        return "all strategies are equal in every partition"
    return None


def _friedman(ranked: Floats) -> Friedman:
    partitions, strategies = ranked.shape
    found = scipy.stats.friedmanchisquare(*ranked.T)
    # The statistic is N(k − 1) times Kendall's W, which is 1 at most.
    least = float(scipy.stats.chi2.sf(partitions * (strategies - 1), strategies - 1))
    return Friedman(float(found.statistic), strategies - 1, float(found.pvalue), least)


def _nemenyi(ranked: Floats, alpha: float) -> Nemenyi:
    partitions, strategies = ranked.shape
    average = ranked.mean(axis=0)
    pairs = tuple(combinations(range(strategies), 2))
    differences = np.array([average[a] - average[b] for a, b in pairs])
    ranges = np.abs(differences) / _standard_error(strategies, partitions) * sqrt(2)
    # Numerical integration may leave [0, 1] by a rounding error.
    p_values = np.clip(scipy.stats.studentized_range.sf(ranges, strategies, np.inf), 0.0, 1.0)
    return Nemenyi(
        alpha,
        critical_difference(strategies, partitions, alpha),
        tuple(
            Pair(a, b, float(difference), float(p))
            for (a, b), difference, p in zip(pairs, differences, p_values, strict=True)
        ),
    )
