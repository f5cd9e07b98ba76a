"""Matrices held as B·A with few columns: sums, best approximations and inner products.

None of this forms a full out × in matrix; the cost grows with (out + in)·rank².
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LowRank(NamedTuple):
    """The matrix b @ a, with b (out, r) and a (r, in)."""

    b: Floats
    a: Floats

    @property
    def rank(self) -> int:
        """The number of columns of b; the matrix may have a lower rank."""
        return int(self.a.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out, in) of the matrix."""
        return int(self.b.shape[0]), int(self.a.shape[1])

    def padded(self, rank: int) -> "LowRank":
        """Return the same matrix with zero columns and rows up to `rank`."""
        more = rank - self.rank
        return LowRank(np.pad(self.b, ((0, 0), (0, more))), np.pad(self.a, ((0, more), (0, 0))))


def combination(matrices: Sequence[LowRank], coefficients: Sequence[float]) -> LowRank:
    """Return Σ c_k·B_k·A_k as one pair of factors, by stacking; those with c_k = 0 are left out."""
    used = [(m, c) for m, c in zip(matrices, coefficients, strict=True) if c != 0]
    if not used:
        return LowRank(matrices[0].b[:, :0], matrices[0].a[:0])
    return LowRank(np.hstack([m.b for m, _ in used]), np.vstack([c * m.a for m, c in used]))


def best_approximation(matrix: LowRank, rank: int | None = None) -> LowRank:
    """Return the closest matrix of at most `rank` columns in the Frobenius norm (Eckart–Young).

    B = Q_b·R_b and Aᵀ = Q_a·R_a by QR, then the SVD of the small R_b·R_aᵀ = U·S·Vᵀ; the factors are
    Q_b·U·√S and √S·Vᵀ·Q_aᵀ, so that both carry the same share. Singular values at the level of
    rounding are dropped, also without a `rank`. The sign of each pair is fixed by making the entry
    of largest magnitude in its row of A positive.
    """
    if matrix.rank == 0:
        return matrix
    q_b, r_b = np.linalg.qr(matrix.b)
    q_a, r_a = np.linalg.qr(matrix.a.T)
    u, s, v = np.linalg.svd(r_b @ r_a.T, full_matrices=False)
    # What stacked terms that cancel leave behind is of the size of the terms, not of their sum.
    noise = np.finfo(np.float64).eps * matrix.rank * np.linalg.norm(r_b) * np.linalg.norm(r_a)
    kept = int(np.count_nonzero(s > noise))
    if rank is not None:
        kept = min(kept, rank)
    root = np.sqrt(s[:kept])
    b, a = q_b @ (u[:, :kept] * root), (root[:, None] * v[:kept]) @ q_a.T
    if kept:
        largest = np.abs(a).argmax(axis=1)
        signs = np.where(a[np.arange(kept), largest] < 0, -1.0, 1.0)
        b, a = b * signs, a * signs[:, None]
    return LowRank(b, a)


def turned_towards(matrix: LowRank, near: LowRank) -> LowRank:
    """Return the same product as B·Q and Qᵀ·A with the orthogonal Q that brings them nearest.

    Nearest in ‖B·Q − near.b‖² + ‖Qᵀ·A − near.a‖² (orthogonal Procrustes, Schönemann 1966): with
    U·S·Vᵀ the SVD of Bᵀ·near.b + A·near.aᵀ, Q = U·Vᵀ. Both have one rank.
    """
    u, _, v = np.linalg.svd(matrix.b.T @ near.b + matrix.a @ near.a.T)
    turn = u @ v
    return LowRank(matrix.b @ turn, turn.T @ matrix.a)


def inner_products(matrices: Sequence[LowRank]) -> Floats:
    """Return ⟨M_i, M_j⟩ = Σ (B_iᵀB_j)∘(A_iA_jᵀ), the Frobenius inner products, (K, K)."""
    everything = combination(matrices, [1.0] * len(matrices))
    products = (everything.b.T @ everything.b) * (everything.a @ everything.a.T)
    starts = np.cumsum([0, *(matrix.rank for matrix in matrices[:-1])])
    return np.asarray(np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1))
