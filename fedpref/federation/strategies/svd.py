"""The best adapter of the run's rank for the average of the products B·A, not of the factors."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import svd_aggregate
from fedpref.federation.strategies.base import (
    RunFacts,
    SiteStrategy,
    pairs_of,
    site_of,
    state_of,
)
from fedpref.federation.wire import keyed_record


class Svd(SiteStrategy):
    """The rank-r factors closest to Σ_k n_k/Σ_j n_j · B_k·A_k in every layer (Eckart–Young).

    All updates of a round are held in memory at once.
    """

    def __init__(self) -> None:
        self._spec: AdapterSpec | None = None

    def prepare(self, facts: RunFacts) -> None:
        """Take rank and scale of the adapters."""
        self._spec = facts.spec

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the factors and the weights, or (None, None) if there is no reply."""
        if self._spec is None:
            raise RoundError("svd was not told of the run")
        states: list[AdapterState] = []
        counts: list[int] = []
        sites: list[str] = []
        for reply in replies:
            states.append(state_of(reply))
            counts.append(pairs_of(reply))
            sites.append(site_of(reply))
        if not states:
            return None, None
        scales = [self._spec.scale] * len(states)
        best = svd_aggregate(states, counts, scales, rank=self._spec.rank, sites=sites)
        total = sum(counts)
        return keyed_record(best), MetricRecord({"weights": [count / total for count in counts]})
