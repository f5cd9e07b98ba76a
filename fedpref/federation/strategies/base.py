"""What our strategies share, and what any strategy may add to Flower's interface.

A strategy is a Flower `Strategy`. These are optional, and looked up by name on any class:

`prepare(facts)`     is called once, after the handshake and before the first round
`sites_needed`       the fewest updates of a round that the strategy can combine (1 if absent)
`stateless = True`   nothing is kept from round to round: a run can be resumed
`save_state()`, `load_state(state)`   what is kept, as named numpy arrays: it survives a resume
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.adapter_state import AdapterSpec, AdapterState
from fedpref.federation.wire import (
    ARRAYS,
    CONFIG,
    METRICS,
    NUM_EXAMPLES,
    SITE,
    config_of,
    read_keyed,
    text,
)


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

    `aggregate_train` gets the updates in the order of the sites' names and may go through them
    more than once: each is read from disk when it is asked for. What it returns as metrics stands
    in the round's record: a list "weights" with one number an update, and anything else.
    """

    stateless = True
    sites_needed = 1

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
        content = RecordDict({ARRAYS: arrays, CONFIG: fields})
        return [
            Message(content, dst_node_id=node, message_type="train", group_id=str(server_round))
            for node in grid.get_node_ids()
        ]

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


def state_of(reply: Message) -> AdapterState:
    """Return the adapter of an update, keys sorted."""
    return read_keyed(reply.content.array_records[ARRAYS])


def pairs_of(reply: Message) -> int:
    """Return the distinct pairs that an update was trained on, > 0."""
    count = reply.content.metric_records[METRICS][NUM_EXAMPLES]
    assert isinstance(count, int)
    return count


def site_of(reply: Message) -> str:
    """Return the name of the site that an update is from."""
    return text(config_of(reply), SITE)


def several_times(replies: Iterable[Message]) -> Iterable[Message]:
    """Return `replies` as something that can be gone through again."""
    return list(replies) if iter(replies) is replies else replies
