"""The best adapter of the run's rank for the average of the products B·A, not of the factors."""

from collections.abc import Sequence

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import svd_aggregate
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import RunFacts, Said, SiteStrategy


class Svd(SiteStrategy):
    """The rank-r factors closest to Σ_k n_k/Σ_j n_j · B_k·A_k in every layer (Eckart–Young)."""

    def __init__(self) -> None:
        self._spec: AdapterSpec | None = None

    def prepare(self, facts: RunFacts) -> None:
        """Take rank and scale of the adapters."""
        self._spec = facts.spec

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the factors and the weights."""
        if self._spec is None:
            raise RoundError("svd was not told of the run")
        counts = [update.pairs for update in updates]
        best = svd_aggregate(
            [update.state for update in updates],
            counts,
            [self._spec.scale] * len(updates),
            rank=self._spec.rank,
            sites=[update.site for update in updates],
        )
        return best, {"weights": [count / sum(counts) for count in counts]}
