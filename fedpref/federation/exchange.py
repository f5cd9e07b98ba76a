"""Sending requests and taking replies one by one, under a deadline."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedpref.federation.wire import content_bytes

POLL_SECONDS = 0.2


@dataclass
class Traffic:
    """Bytes of message contents: `down` to the sites, `up` from them."""

    down: int = 0
    up: int = 0


def exchange(
    grid: Grid,
    requests: Mapping[str, Message],
    on_reply: Callable[[str, Message], Message | None],
    *,
    deadline: float,
    traffic: Traffic,
    poll: float = POLL_SECONDS,
) -> tuple[str, ...]:
    """Send one message a site, hand each reply to `on_reply` as it comes, return who is missing.

    Replies are pulled one message id at a time, so that one of them is in memory. A message that
    `on_reply` returns is sent to the same site, under the same deadline. The wait ends when every
    site has answered or `deadline` seconds have passed; what comes later is never looked at.
    """
    end = time.monotonic() + deadline
    # An error reply of an offline node comes from the SuperLink: only the id says whose it is.
    pending: dict[str, str] = {}
    missing: list[str] = []

    def send(site: str, message: Message) -> None:
        traffic.down += content_bytes([message])
        message_id = push(grid, message)
        if message_id:
            pending[message_id] = site
        else:
            missing.append(site)

    for site, message in requests.items():
        send(site, message)
    while pending:
        for message_id in list(pending):
            for reply in pull(grid, message_id):
                site = pending.pop(message_id)
                traffic.up += content_bytes([reply])
                again = on_reply(site, reply)
                del reply
                if again is not None:
                    send(site, again)
        if pending and time.monotonic() >= end:
            break
        if pending:
            time.sleep(min(poll, max(end - time.monotonic(), 0.0)))
    return tuple(sorted([*missing, *pending.values()]))


def ask_all(
    grid: Grid,
    request: Callable[[int], Message],
    on_reply: Callable[[int, Message], None],
    enough: Callable[[], bool],
    *,
    deadline: float,
    poll: float = POLL_SECONDS,
) -> None:
    """Send one message to every node as it registers, and hand each reply to `on_reply`.

    Flower starts the coordinator before all SuperNodes have registered. The wait ends when nothing
    that was sent is unanswered and `enough()` holds, or after `deadline` seconds.
    """
    end = time.monotonic() + deadline
    pending: dict[str, int] = {}
    seen: set[int] = set()
    while True:
        for node in sorted(set(grid.get_node_ids()) - seen):
            seen.add(node)
            message_id = push(grid, request(node))
            if message_id:
                pending[message_id] = node
        for message_id in list(pending):
            for reply in pull(grid, message_id):
                on_reply(pending.pop(message_id), reply)
        if (not pending and enough()) or time.monotonic() >= end:
            return
        time.sleep(poll)


def push(grid: Grid, message: Message) -> str | None:
    """Send one message; return its id, or None if Flower did not take it (the node is gone)."""
    return next(iter(grid.push_messages([message])), None)


def pull(grid: Grid, message_id: str) -> Iterable[Message]:
    """Return the reply to one message, or nothing yet."""
    return list(grid.pull_messages([message_id]))[:1]
