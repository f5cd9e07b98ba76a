"""The default strategy: the average of the sites' adapters, weighted by their pair counts."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.federation.aggregation import WeightedFold
from fedpref.federation.wire import ARRAYS, CONFIG, METRICS, NUM_EXAMPLES, keyed_record, read_keyed


class PairFedAvg(Strategy):
    """phi(t) = Σ_k n_k/Σ_j n_j · phi_k(t), with n_k the distinct pairs trained this round.

    Replies are consumed one at a time, in the order given; whoever calls decides that order. The
    metrics carry the weight of each reply in the same order.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for every node of `grid`."""
        content = RecordDict({ARRAYS: arrays, CONFIG: config})
        return [
            Message(content, dst_node_id=node, message_type="train", group_id=str(server_round))
            for node in grid.get_node_ids()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weighted mean and the weights, or (None, None) if there is no reply."""
        fold, counts = WeightedFold(), []
        for reply in replies:
            count = reply.content.metric_records[METRICS][NUM_EXAMPLES]
            assert isinstance(count, int)
            fold.add(read_keyed(reply.content.array_records[ARRAYS]), count)
            counts.append(count)
        if not counts:
            return None, None
        total = sum(counts)
        weights = [count / total for count in counts]
        return keyed_record(fold.mean()), MetricRecord({NUM_EXAMPLES: total, "weights": weights})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: every site evaluates every round, whatever the strategy."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: counts are added up per site, never averaged by a strategy."""
        return None

    def summary(self) -> None:
        """Log nothing: the run prints its whole configuration."""
