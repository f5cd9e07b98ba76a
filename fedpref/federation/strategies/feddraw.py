"""FedDRAW: weights by size, then by similarity, at last equal (arXiv:2609.05223; DESIGN 1.12)."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedpref.adapter_state import AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import FedDrawOptions, WeightedFold, feddraw_trace
from fedpref.federation.aggregation.feddraw import BETA_MAX, ETA, KAPPA, Ablation, Similarity
from fedpref.federation.aggregation.layers import last_block, lora_layers
from fedpref.federation.strategies.base import (
    RunFacts,
    SiteStrategy,
    pairs_of,
    several_times,
    site_of,
    state_of,
)
from fedpref.federation.wire import ARRAYS, keyed_record, read_keyed


class FedDraw(SiteStrategy):
    """phi(t) = Σ_k w_k·phi_k(t), with the weights of `aggregation.feddraw_weights`.

    The updates are read twice: for the weights only the compared layers of all sites are held (with
    `whole_model` everything), for the mean one update at a time. The metrics carry γ, β and, in the
    order of the replies, sizes, similarities, reputations and weights.
    """

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

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weighted mean and the trace, or (None, None) if there is no reply."""
        if self._last_round is None or not self._previous:
            raise RoundError("feddraw was not told of the run or of the round's adapter")
        replies = several_times(replies)
        states: list[AdapterState] = []
        counts: list[int] = []
        sites: list[str] = []
        for reply in replies:
            arrays = reply.content.array_records[ARRAYS]
            states.append({key: arrays[key].numpy() for key in self._previous})
            counts.append(pairs_of(reply))
            sites.append(site_of(reply))
        if not states:
            return None, None
        trace = feddraw_trace(
            states,
            self._previous,
            counts,
            round=server_round - 1,
            last_round=self._last_round,
            options=self.options,
            sites=sites,
        )
        fold = WeightedFold()
        for reply, weight in zip(replies, trace.weights, strict=True):
            fold.add(state_of(reply), weight, site=site_of(reply))
        return keyed_record(fold.mean()), MetricRecord(
            {
                "gamma": trace.gamma,
                "beta": trace.beta,
                "sizes": list(trace.sizes),
                # Every update was trained on pairs, so that no site lacks one of these.
                "similarities": [value for value in trace.similarities if value is not None],
                "reputations": [value for value in trace.reputations if value is not None],
                "weights": list(trace.weights),
            }
        )
