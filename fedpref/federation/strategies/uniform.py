"""Every site counts alike, however many pairs it has."""

from collections.abc import Sequence

from fedpref.adapter_state import AdapterState
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import Said, SiteStrategy, mean


class Uniform(SiteStrategy):
    """phi(t) = 1/K · Σ_k phi_k(t) over the K sites that trained this round."""

    stateless = True

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the mean and the equal weights."""
        return mean(updates, [1] * len(updates))
