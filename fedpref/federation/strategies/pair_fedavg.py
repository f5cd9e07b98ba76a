"""The default strategy: the average of the sites' adapters, weighted by their pair counts."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord

from fedpref.federation.aggregation import WeightedFold
from fedpref.federation.strategies.base import SiteStrategy, pairs_of, site_of, state_of
from fedpref.federation.wire import keyed_record


class PairFedAvg(SiteStrategy):
    """phi(t) = Σ_k n_k/Σ_j n_j · phi_k(t), with n_k the distinct pairs trained this round.

    Replies are consumed one at a time, in the order given; whoever calls decides that order. The
    metrics carry the weight of each reply in the same order.
    """

    def weight(self, pairs: int) -> int:
        """Return the weight, before division by the sum, of an update trained on `pairs`."""
        return pairs

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weighted mean and the weights, or (None, None) if there is no reply."""
        fold, parts = WeightedFold(), []
        for reply in replies:
            parts.append(self.weight(pairs_of(reply)))
            fold.add(state_of(reply), parts[-1], site=site_of(reply))
        if not parts:
            return None, None
        total = sum(parts)
        return keyed_record(fold.mean()), MetricRecord({"weights": [w / total for w in parts]})
