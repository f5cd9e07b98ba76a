"""How large the sites are: sizes drawn from a Dirichlet distribution, and which are small. Pure."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def drawn_shares(sites: int, concentration: float, *, seed: int) -> NDArray[np.float64]:
    """Return (sites,) shares that sum to 1, largest first, from Dirichlet(concentration·1).

    The smaller the concentration, the more unequal; at 1, every division is equally likely. The
    draw has a stream of its own: the same seed elsewhere draws nothing that depends on it.
    ValueError unless there is a site and the concentrations have a positive, finite sum.
    """
    if sites < 1:
        raise ValueError(f"there must be at least one site, not {sites}")
    if not 0 < concentration * sites < np.inf:
        raise ValueError(f"the concentration must be positive and finite, not {concentration}")
    # `allocate` draws from the first two children of its seed, this is the third.
    stream = np.random.SeedSequence(seed, spawn_key=(2,))
    draw = np.random.Generator(np.random.Philox(stream))
    shares: NDArray[np.float64] = np.sort(draw.dirichlet(np.full(sites, concentration)))[::-1]
    return shares


def small_sites(shares: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of the sites that are smaller than an equal share, in order."""
    share = np.asarray(shares, dtype=np.float64)
    # Sizes that are equal but for rounding are no smaller ones.
    return np.flatnonzero(share < share.mean() * (1 - 1e-9)).astype(np.int64)
