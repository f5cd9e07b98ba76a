"""The part of Flower's grid that a strategy gets to see."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedpref.errors import RoundError


class SitesOnly(Grid):
    """What a strategy sees of the grid: the nodes of the cohort. It sends nothing itself."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the joined sites, in site order."""
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
