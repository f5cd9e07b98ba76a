"""What our strategies share, and what any strategy may add to Flower's interface.

A strategy is a Flower `Strategy`. These are optional, and looked up by name on any class:

`prepare(facts)`     is called once, after the handshake and before the first round
`sites_needed`       the fewest updates of a round that the strategy can combine (1 if absent)
`keeps_residual`     whether the combined adapter may have a residual (see `fedpref.residual`)
`stateless = True`   nothing is kept from round to round: a run can be resumed. It counts in the
                     class itself only: a subclass may remember what its base does not
`save_state()`, `load_state(state)`   what is kept, as named numpy arrays: it survives a resume
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.federation import wire
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.aggregation.inputs import normalised
from fedpref.federation.spool import SiteUpdate

Said = Mapping[str, int | float | list[float]]


@dataclass(frozen=True)
class RunFacts:
    """What a strategy may know of a run.

    `sites` are the names of all its sites, sorted; `last_round` the number T of the last round of
    0…T; `spec` the keys and shapes, rank and scale of every adapter.
    """

    sites: tuple[str, ...]
    last_round: int
    spec: AdapterSpec


class SiteStrategy(Strategy):
    """A strategy in which all sites of a round train alike; a subclass combines their updates.

    The round loop calls `combine`, with updates that stay on disk until a tensor is looked at.
    """

    stateless = False
    sites_needed = 1
    keeps_residual = False

    @abstractmethod
    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the next global adapter and what is to stand in the round's record.

        `updates` are one or more, in the order of the sites' names; rounds count from 0. What is
        said of the round is a list "weights" with one number an update, and anything else.
        """

    def prepare(self, facts: RunFacts) -> None:
        """Take what is needed of the run; here nothing. May raise ConfigError."""

    def train_settings(self) -> dict[str, bool | float]:
        """Return what sites change in their training, by the names of `training.adjustment`."""
        return {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for every node of `grid`; `server_round` counts from 1."""
        fields = ConfigRecord({**dict(config), **self.train_settings()})
        content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: fields})
        return [
            Message(content, dst_node_id=node, message_type="train", group_id=str(server_round))
            for node in grid.get_node_ids()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine replies that hold one array a key, as Flower's own loop has them."""
        updates = [_update_of(reply) for reply in replies]
        if not updates:
            return None, None
        state, said = self.combine(server_round - 1, updates)
        return wire.keyed_record(state), MetricRecord(dict(said))

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


def mean(updates: Sequence[SiteUpdate], weights: Sequence[float]) -> tuple[AdapterState, Said]:
    """Return Σ w_k·phi_k / Σ w_k and, to be said, the weights w_k / Σ w_k."""
    state = weighted_mean(
        [update.state for update in updates], weights, sites=[update.site for update in updates]
    )
    return state, {"weights": normalised(weights).tolist()}


def _update_of(reply: Message) -> SiteUpdate:
    metrics = reply.content.metric_records[wire.METRICS]
    pairs, loss = metrics[wire.NUM_EXAMPLES], metrics.get(wire.TRAIN_LOSS)
    assert isinstance(pairs, int)
    assert loss is None or isinstance(loss, float)
    state = wire.read_keyed(reply.content.array_records[wire.ARRAYS])
    return SiteUpdate(wire.text(wire.config_of(reply), wire.SITE), pairs, state, loss)
