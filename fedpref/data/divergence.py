"""How differently sites are mixed, against chance (DESIGN 1.10). Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BATCH_CELLS = 4_000_000  # permuted site labels held at a time


@dataclass(frozen=True)
class PermutationTest:
    """The observed divergence against permutations that keep the sites' sizes.

    `null_95` is the 95th percentile under permutation, `ratio` = observed / null_95 (None if that
    is 0), `p_value` the plus-one Monte Carlo probability.
    """

    observed: float
    null_95: float
    ratio: float | None
    p_value: float


def case_mix_divergence(sizes: ArrayLike, prevalence: ArrayLike) -> float:
    """Return `sqrt(1/(N·L) · Σ_k n_k Σ_l (p_kl − p_l)²)`, a fraction.

    `sizes` (K,) are rows a site, `prevalence` (K, L) the share of a site's rows with a label;
    p_l is the prevalence over all rows. Sites without rows count for nothing.
    """
    n = np.asarray(sizes, dtype=np.float64)
    p = np.asarray(prevalence, dtype=np.float64)
    if p.ndim != 2 or n.shape != p.shape[:1] or not p.shape[1]:
        raise ValueError(
            f"sizes {n.shape} and prevalence {p.shape} must be (sites,) and (sites, labels)"
        )
    if n.sum() <= 0:
        raise ValueError("there are no rows")
    p = np.where(n[:, None] > 0, p, 0.0)
    return float(_divergence(n, p * n[:, None]))


def permutation_test(
    labels: ArrayLike, site: ArrayLike, *, permutations: int = 1999, seed: int
) -> PermutationTest:
    """Return the divergence of `labels` (N, L) over `site` (N,) against shuffled intact rows."""
    label_rows = np.asarray(labels, dtype=bool)
    sites, index = np.unique(np.asarray(site), return_inverse=True)
    if label_rows.ndim != 2 or len(index) != len(label_rows) or not len(index):
        raise ValueError("labels must be (rows, labels) and site (rows,), with at least one row")
    if permutations < 1:
        raise ValueError(f"permutations must be at least 1, not {permutations}")
    sizes = np.bincount(index, minlength=len(sites)).astype(np.float64)
    values = label_rows.astype(np.float64)
    observed = float(_divergence(sizes, _counts(index[None, :], len(sites), values)[0]))
    rng = np.random.Generator(np.random.Philox(seed))
    batch = max(1, _BATCH_CELLS // len(index))
    null = np.empty(permutations)
    for start in range(0, permutations, batch):
        stop = min(start + batch, permutations)
        shuffled = rng.permuted(np.tile(index, (stop - start, 1)), axis=1)
        null[start:stop] = _divergence(sizes, _counts(shuffled, len(sites), values))
    null_95 = float(np.quantile(null, 0.95))
    # Equal divergences may differ in the last bits; they count as at least as large.
    as_large = int((null >= observed - 1e-12).sum())
    return PermutationTest(
        observed=observed,
        null_95=null_95,
        ratio=observed / null_95 if null_95 > 0 else None,
        p_value=(1 + as_large) / (1 + permutations),
    )


def _counts(
    index: NDArray[np.intp], sites: int, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (P, K, L): for P assignments (P, N) of rows to sites, the label counts a site."""
    return np.stack([(index == k).astype(np.float64) @ values for k in range(sites)], axis=1)


def _divergence(sizes: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence of label counts (…, K, L) at sites of these sizes."""
    total = sizes.sum()
    global_p = counts.sum(axis=-2, keepdims=True) / total
    p = counts / np.maximum(sizes, 1e-300)[:, None]
    squares = (sizes[:, None] * (p - global_p) ** 2).sum(axis=(-2, -1))
    result: NDArray[np.float64] = np.sqrt(squares / (total * counts.shape[-1]))
    return result
