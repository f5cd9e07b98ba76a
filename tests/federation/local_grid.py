"""A Grid in this process: no Ray, no network; every message is serialised both ways.

It behaves like Flower where the code under test relies on it: node ids are opaque, a ClientApp that
raises gives an error reply, an error reply of an offline node comes from the SuperLink (node 1).
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

ClientApp = Callable[[Message, Context], Message]
_SUPERLINK = 1
_NODE_UNAVAILABLE = 5


@dataclass
class LocalGrid(Grid):
    """Runs `client_app` for each pushed message at once; a reply may become visible later.

    `delay(site number, message)` is in seconds; `tamper(site number, reply)` may change or replace
    a reply on its way; `offline` are site numbers that do not take messages; `late_nodes` is the
    number of nodes that register only after the first look at the node ids.
    """

    client_app: ClientApp
    run_config: Mapping[str, Any]
    nodes: int
    node_configs: list[dict[str, Any]] | None = None
    delay: Callable[[int, Message], float] = lambda site, message: 0.0
    tamper: Callable[[int, Message], Message] = lambda site, reply: reply
    offline: set[int] = field(default_factory=set)
    late_nodes: int = 0
    sent: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        configs = self.node_configs or [
            {"partition-id": i, "num-partitions": self.nodes} for i in range(self.nodes)
        ]
        self.contexts = {
            101 + i: Context(
                run_id=1,
                node_id=101 + i,
                node_config=config,
                state=RecordDict(),
                run_config=dict(self.run_config),
            )
            for i, config in enumerate(configs)
        }
        self._ready: dict[str, tuple[float, Message]] = {}

    def get_node_ids(self) -> Iterable[int]:
        ids = sorted(self.contexts)
        hidden, self.late_nodes = self.late_nodes, 0
        return ids[: len(ids) - hidden]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            _serialise(message)
            self.sent.append(message)
            site = message.metadata.dst_node_id - 101
            due = time.monotonic() + self.delay(site, message)
            self._ready[message_id] = (due, self._reply(site, message))
            ids.append(message_id)
        return ids

    def _reply(self, site: int, message: Message) -> Message:
        if site in self.offline:
            reply = Message(Error(code=_NODE_UNAVAILABLE, reason="offline"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = _SUPERLINK
            return reply
        try:
            reply = self.client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)
        _serialise(reply)
        self.replies.append(reply)
        return self.tamper(site, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now = time.monotonic()
        ids = [i for i in message_ids if i in self._ready and self._ready[i][0] <= now]
        return [self._ready.pop(i)[1] for i in ids]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run


def _serialise(message: Message) -> None:
    """Replace the content by what the other end would read from the wire."""
    if message.has_content():
        message.content = recorddict_from_proto(recorddict_to_proto(message.content))
