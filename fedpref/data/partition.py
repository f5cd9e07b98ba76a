"""Dividing a cohort among sites of unequal size and case mix (DESIGN 1.10). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# No row goes to a site more than this many times as readily for one label.
MAX_FACTOR: Final = 1000.0


@dataclass(frozen=True)
class Allocation:
    """`site` (N,): the site of each row. `profiles` (L, K): where each label prefers to go."""

    site: NDArray[np.int64]
    profiles: NDArray[np.float64]


def capacities(total: int, shares: ArrayLike) -> NDArray[np.int64]:
    """Return `total` divided in proportion to `shares` by largest remainder; the sum is exact.

    Equal remainders go to the earlier site.
    """
    exact = total * _normalised(shares)
    floors = np.floor(exact).astype(np.int64)
    # Rounded, so that equal shares have equal remainders whatever the last bit says.
    by_remainder = np.argsort(-np.round(exact - floors, 9), kind="stable")
    floors[by_remainder[: total - int(floors.sum())]] += 1
    return floors


def allocate(
    labels: ArrayLike,
    shares: ArrayLike,
    *,
    alpha: float,
    skew: float,
    seed: int,
    profiles: ArrayLike | None = None,
    groups: Sequence[object] | ArrayLike | None = None,
    enrichment: ArrayLike | None = None,
) -> Allocation:
    """Return a site for each row: Dirichlet label profiles under fixed capacities.

    `labels` (N, L) says which labels a row has; `shares` (K,) are the sites' sizes. Each label l
    prefers sites by `q_l ~ Dirichlet(alpha)` (or by the given `profiles` (L, K), so that dev and
    test resemble training). Rows come in a seeded order; a row goes to a site that has room with
    probability ∝ `(1 - skew)·share_k + skew·mean_l q_lk` over its labels. Rows of one group (N,)
    stay together, larger groups first; capacities are exact if no group has two rows, else a site
    is exceeded only by a group for which no site had room.

    `enrichment` (L, K) says how many times as readily a row with label l goes to site k than the
    site's size says; 1 changes nothing, and the factors of several labels multiply. Groups with
    such a label are placed first, by sizes and factors alone: neither a drawn profile nor a site
    that others have filled works against it. A label enriched f-fold at sites that have the share
    S together is then expected to be f/(1 + (f - 1)·S) times as frequent there as among all rows,
    as far as there is room.
    """
    labels = np.asarray(labels, dtype=bool)
    if labels.ndim != 2:
        raise ValueError(f"labels must be (rows, labels), not of shape {labels.shape}")
    share = _normalised(shares)
    if not 0 <= skew <= 1:
        raise ValueError(f"skew must lie in [0, 1], not {skew}")
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be positive and finite, not {alpha}")
    rows, label_count = labels.shape
    profile_seed, draw_seed = np.random.SeedSequence(seed).spawn(2)
    q = _profiles(profiles, (label_count, len(share)), alpha, profile_seed)

    counts = labels.sum(axis=1, keepdims=True)
    # A row without any label has no preference but the sites' sizes.
    mean_q = np.where(counts > 0, labels @ q / np.maximum(counts, 1), share)
    preference = (1 - skew) * share + skew * mean_q
    enriched: NDArray[np.bool_] = np.zeros(rows, dtype=bool)
    if enrichment is not None:
        factor = _factors(enrichment, q.shape)
        enriched = (labels & (factor != 1).any(axis=1)).any(axis=1)
        preference = np.where(
            enriched[:, None], share * np.exp(labels @ np.log(factor)), preference
        )

    rng = np.random.Generator(np.random.Philox(draw_seed))
    room = capacities(rows, share)
    site = np.empty(rows, dtype=np.int64)
    ordered = _ordered_groups(rows, groups, rng)
    for members in sorted(ordered, key=lambda members: not enriched[members].any()):
        open_sites = room >= len(members)
        if not open_sites.any():
            open_sites = room == room.max()
        weights = np.where(open_sites, preference[members].mean(axis=0), 0.0)
        if weights.sum() <= 0:  # the labels prefer only sites that are full
            weights = np.where(open_sites, share, 0.0)
        if weights.sum() <= 0:
            weights = open_sites.astype(np.float64)
        chosen = int(rng.choice(len(share), p=weights / weights.sum()))
        site[members] = chosen
        room[chosen] -= len(members)
    return Allocation(site, q)


def _ordered_groups(
    rows: int, groups: Sequence[object] | ArrayLike | None, rng: np.random.Generator
) -> list[list[int]]:
    """Return the rows of each group, groups in seeded order, larger ones first."""
    keys: Sequence[object] = range(rows) if groups is None else list(groups)  # type: ignore[arg-type]
    if len(keys) != rows:
        raise ValueError(f"groups must name one group for each of {rows} rows, not {len(keys)}")
    members: dict[object, list[int]] = {}
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    listed = list(members.values())
    return sorted((listed[i] for i in rng.permutation(len(listed))), key=len, reverse=True)


def _profiles(
    given: ArrayLike | None, shape: tuple[int, int], alpha: float, seed: np.random.SeedSequence
) -> NDArray[np.float64]:
    """Return (labels, sites) profiles: the given ones, checked, or drawn ones."""
    if given is None:
        draw = np.random.Generator(np.random.Philox(seed))
        return draw.dirichlet(np.full(shape[1], alpha), size=shape[0])
    q = np.asarray(given, dtype=np.float64)
    if q.shape != shape:
        raise ValueError(f"profiles must be {shape}, not {q.shape}")
    if not (np.isfinite(q) & (q >= 0)).all():
        raise ValueError("profiles must be non-negative numbers")
    return q


def _factors(enrichment: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    factor = np.asarray(enrichment, dtype=np.float64)
    if factor.shape != shape:
        raise ValueError(f"enrichment must be {shape}, not {factor.shape}")
    # Bounded, so that the product of several stays finite and above 0.
    if not ((factor >= 1 / MAX_FACTOR) & (factor <= MAX_FACTOR)).all():
        raise ValueError(f"enrichment must lie between 1/{MAX_FACTOR:g} and {MAX_FACTOR:g}")
    return factor


def _normalised(shares: ArrayLike) -> NDArray[np.float64]:
    share = np.asarray(shares, dtype=np.float64)
    if share.ndim != 1 or not len(share) or (share < 0).any() or not np.isfinite(share).all():
        raise ValueError("shares must be one non-negative number a site")
    if share.sum() <= 0:
        raise ValueError("the shares sum to 0")
    normalised: NDArray[np.float64] = share / share.sum()
    return normalised
