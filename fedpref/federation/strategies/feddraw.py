"""FedDRAW: weights by size, then by similarity, at last equal (arXiv:2609.05223; DESIGN 1.12)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import FedDrawOptions, feddraw_trace
from fedpref.federation.aggregation.feddraw import BETA_MAX, ETA, KAPPA, Ablation, Similarity
from fedpref.federation.aggregation.layers import last_block, lora_layers
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import RunFacts, Said, SiteStrategy, mean
from fedpref.federation.wire import read_keyed


class FedDraw(SiteStrategy):
    """phi(t) = Σ_k w_k·phi_k(t), with the weights of `aggregation.feddraw_weights`.

    For the weights only the compared layers are read. Said are γ, β and, in the order of the
    updates, sizes, similarities, reputations and weights.
    """

    stateless = True

    def __init__(
        self,
        *,
        eta: float = ETA,
        beta_max: float = BETA_MAX,
        kappa: float = KAPPA,
        similarity: Similarity = "product",
        whole_model: bool = False,
        ablation: Ablation = "none",
    ) -> None:
        self.options = FedDrawOptions(eta, beta_max, kappa, similarity, whole_model, ablation)
        self._last_round: int | None = None
        self._previous: AdapterState = {}

    def prepare(self, facts: RunFacts) -> None:
        """Take the last round: the schedules end there."""
        self._last_round = facts.last_round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep what is compared of the global adapter; return one message a node."""
        previous = read_keyed(arrays)
        layers = lora_layers([previous])
        compared = layers if self.options.whole_model else last_block(layers)
        self._previous = {key: previous[key] for layer in compared for key in (layer.a, layer.b)}
        return super().configure_train(server_round, arrays, config, grid)

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the weighted mean and the trace."""
        if self._last_round is None or not self._previous:
            raise RoundError("feddraw was not told of the run or of the round's adapter")
        trace = feddraw_trace(
            [self._compared(update) for update in updates],
            self._previous,
            [update.pairs for update in updates],
            round=round_,
            last_round=self._last_round,
            options=self.options,
            sites=[update.site for update in updates],
        )
        state, _ = mean(updates, trace.weights)
        return state, {
            "gamma": trace.gamma,
            "beta": trace.beta,
            "sizes": list(trace.sizes),
            # Every update was trained on pairs, so that no site lacks one of these.
            "similarities": [value for value in trace.similarities if value is not None],
            "reputations": [value for value in trace.reputations if value is not None],
            "weights": list(trace.weights),
        }

    def _compared(self, update: SiteUpdate) -> Mapping[str, NDArray[np.float32]]:
        if self.options.whole_model:
            return update.state  # too much to be held for every site
        return {key: update.state[key] for key in self._previous}
