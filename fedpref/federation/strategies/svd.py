"""The best adapter of the run's rank for the average of the products B·A, not of the factors."""

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import svd_aggregate
from fedpref.federation.aggregation.inputs import normalised
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import RunFacts, Said, SiteStrategy
from fedpref.federation.wire import read_keyed


class Svd(SiteStrategy):
    """The rank-r factors closest to Σ_k n_k/Σ_j n_j · B_k·A_k in every layer (Eckart–Young).

    Of the many factors with that product, those nearest to the round's adapter: a lossy wire rounds
    the difference of the factors, which would else be as large as the factors themselves.
    """

    stateless = True

    def __init__(self) -> None:
        self._spec: AdapterSpec | None = None
        self._before: AdapterState | None = None

    def prepare(self, facts: RunFacts) -> None:
        """Take rank and scale of the adapters."""
        self._spec = facts.spec

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the adapter with which the round begins; return one message a node."""
        self._before = read_keyed(arrays)
        return super().configure_train(server_round, arrays, config, grid)

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
            near=self._before,
            sites=[update.site for update in updates],
        )
        return best, {"weights": normalised(counts).tolist()}
