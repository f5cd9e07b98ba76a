"""The default strategy: the average of the sites' adapters, weighted by their pair counts."""

from collections.abc import Sequence

from fedpref.adapter_state import AdapterState
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import Said, SiteStrategy, mean


class PairFedAvg(SiteStrategy):
    """phi(t) = Σ_k n_k/Σ_j n_j · phi_k(t), with n_k the distinct pairs trained this round."""

    stateless = True

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the weighted mean and the weights."""
        return mean(updates, [update.pairs for update in updates])
