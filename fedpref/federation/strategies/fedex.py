"""FedEx-LoRA: the mean of the factors, and beside it, frozen, what it misses (arXiv:2410.09432)."""

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import add_residuals, concatenate, fedex_aggregate
from fedpref.federation.aggregation.inputs import normalised
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import RunFacts, Said, SiteStrategy
from fedpref.federation.wire import read_keyed
from fedpref.residual import rank_of, split


class FedEx(SiteStrategy):
    """A(t) and B(t) are the means of A_k and B_k by pairs; R(t) holds what they miss.

    R(t) = R(t−1) + s·(Σ_k w_k·B_k·A_k − B(t)·A(t)) with w_k = n_k/Σ_j n_j; the served model is the
    base + R(t) + s·B(t)·A(t). Sites train A and B with R frozen. The adapter of a round holds R
    beside A and B (`fedpref.residual`), so that nothing has to be kept here for a resume. Said is
    the rank of R.
    """

    stateless = True
    keeps_residual = True

    def __init__(self) -> None:
        self._spec: AdapterSpec | None = None
        self._residual: AdapterState | None = None

    def prepare(self, facts: RunFacts) -> None:
        """Take rank and scale of the adapters."""
        self._spec = facts.spec

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the residual with which the round's sites train; return one message a node."""
        _, self._residual = split(read_keyed(arrays), self._known_spec().rank)
        return super().configure_train(server_round, arrays, config, grid)

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the mean with the residual beside it, the weights and the residual's rank."""
        counts = [update.pairs for update in updates]
        mean, residual = fedex_aggregate(
            [update.state for update in updates],
            counts,
            [self._known_spec().scale] * len(updates),
            sites=[update.site for update in updates],
        )
        if self._residual is not None:
            residual = add_residuals(self._residual, residual)
        return concatenate([mean, residual]), {
            "weights": normalised(counts).tolist(),
            "residual_rank": rank_of(residual),
        }

    def _known_spec(self) -> AdapterSpec:
        if self._spec is None:
            raise RoundError("fedex was not told of the run")
        return self._spec
