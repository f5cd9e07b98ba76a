"""What a strategy gets to see: the nodes of a round, and the updates that were accepted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedpref.errors import RoundError
from fedpref.federation import wire
from fedpref.federation.spool import SiteUpdate

# Flower's strategies ask twice; one that waits for more nodes than there are asks every second.
_MOST_LOOKS: Final = 10


class SitesOnly(Grid):
    """What a strategy sees of the grid: the nodes of the cohort. It sends nothing itself."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the round's sites, in site order.

        Raises RoundError for a strategy that keeps asking: no other node will ever come.
        """
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise RoundError(
                f"the strategy waits for more than the round's {len(self._nodes)} sites"
            )
        return list(self._nodes)

    @property
    def run(self) -> Run:
        """Return Flower's run."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Refuse: the run is set already."""
        raise RoundError("a strategy must not change the run")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse: Flower's way is to build a Message."""
        raise RoundError("a strategy builds messages with flwr.app.Message")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: the round loop sends."""
        raise RoundError("a strategy must not send messages itself")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: the round loop receives."""
        raise RoundError("a strategy must not receive messages itself")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refuse: the round loop sends and receives."""
        raise RoundError("a strategy must not send messages itself")


class Replies:
    """The accepted updates of a round as Flower's strategies expect replies, in site order.

    Each is read from disk when it is asked for, and they can be gone through more than once: a
    strategy that needs two looks need not hold all of them. An adapter is one array a key, sorted;
    `nodes` are the sites' node ids.
    """

    def __init__(
        self, updates: Sequence[SiteUpdate], nodes: Mapping[str, int], round_: int
    ) -> None:
        self._updates, self._nodes, self._round = updates, nodes, round_

    def __iter__(self) -> Iterator[Message]:
        """Yield a fresh message a site: some strategies take the arrays out of theirs."""
        for update in self._updates:
            metrics = MetricRecord({wire.NUM_EXAMPLES: update.pairs})
            if update.loss is not None:
                metrics[wire.TRAIN_LOSS] = update.loss
            yield Message(
                RecordDict(
                    {
                        wire.ARRAYS: wire.keyed_record(update.state),
                        wire.METRICS: metrics,
                        wire.CONFIG: ConfigRecord({wire.SITE: update.site}),
                    }
                ),
                dst_node_id=self._nodes[update.site],
                message_type="train",
                group_id=str(self._round),
            )
