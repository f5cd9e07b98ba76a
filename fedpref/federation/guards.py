"""What a reply must be before anything else sees it; a refusal names the reason, never a value.

A refused reply is no fault of the run: the round closes without that site while a quorum holds.
Each reply is looked at by itself here; `cohort_guards` compares those of a round.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec, state_digest, unpack
from fedpref.errors import FedPrefError, RoundError
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation import wire

# Metrics beyond these, or `Expectation.metrics`, are dropped (`cohort_guards.ExtraMetrics` warns).
EVALUATED_METRICS: Final = frozenset(count.name for count in fields(EvaluationCounts))

_ERROR_LIMIT = 2000
_CODED = re.compile(r"\[FP\d{3}\]")

_FLOWER_ERRORS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "the site cannot load the app (is fedpref[site] installed "
    "there?)",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "the site's app failed; its own log says why",
    ErrorCode.MESSAGE_UNAVAILABLE: "the message expired before the site took it",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "the site's reply expired or was lost",
    ErrorCode.NODE_UNAVAILABLE: "the site's SuperNode is offline",
    ErrorCode.CLIENT_APP_CRASHED: "the site's app crashed (out of memory?)",
}


class Refused(RoundError):
    """A reply that is left out, with the reason in `what`."""


@dataclass(frozen=True)
class Expectation:
    """What the coordinator knows about the one reply it waits for.

    `pairs` is the site's count in the handshake, over-long pairs left out already; `loss` says
    whether the strategy asked for the training loss, `frozen` what it asked to leave as it is.
    """

    site: str
    federation: str
    round: int
    spec: AdapterSpec
    base_hash: str
    pairs: int
    loss: bool = False
    frozen: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that a `trained` reply may carry; others are dropped."""
        return frozenset({wire.NUM_EXAMPLES, *([wire.TRAIN_LOSS] if self.loss else [])})


@dataclass(frozen=True)
class Update:
    """A site's trained adapter (flat, finite, of the agreed length), pair count and asked loss."""

    flat: NDArray[np.float32]
    pair_count: int
    adapter_hash: str
    loss: float | None = None


def check_reply(reply: Message, expected: Expectation, statuses: Sequence[str]) -> str:
    """Return the reply's status, one of `statuses`; raise Refused with the site's own reason.

    Checks that the reply carries content and answers for this site, federation and round.
    """
    config = check_answer(reply)
    status = wire.text(config, wire.STATUS)
    for name, found, value in (
        (wire.SITE, wire.text(config, wire.SITE), expected.site),
        (wire.FEDERATION, wire.text(config, wire.FEDERATION), expected.federation),
        (wire.ROUND, wire.number(config, wire.ROUND), expected.round),
    ):
        if found != value:
            raise Refused(f"the reply is for another {name}")
    if status not in statuses:
        raise Refused("the reply has an unexpected status")
    # Read later, when the reply has been accepted: what is wrong must show before.
    wire.texts(config, wire.HOLDS)
    return status


def check_answer(reply: Message) -> ConfigRecord:
    """Return a reply's config record; raise Refused if Flower or the site tells of an error."""
    if reply.has_error():
        code = reply.error.code
        raise Refused(_FLOWER_ERRORS.get(code, f"Flower reports error {code} for the site"))
    config = wire.config_of(reply)
    if wire.text(config, wire.STATUS) == wire.FAILED:
        raise Refused(site_error(reply))
    return config


def site_error(reply: Message) -> str:
    """Return the coded message of an error reply, in one piece of bounded length."""
    message = wire.text(wire.config_of(reply), wire.ERROR)
    if not _CODED.match(message):
        return "the site failed without a coded message"
    return "\n".join(printable(line) for line in message.splitlines())[:_ERROR_LIMIT]


def printable(text: str) -> str:
    """Return the printable part of a text that a site wrote, of bounded length.

    A site could write anything; a log line stays a line.
    """
    return "".join(c for c in text if c.isprintable())[:_ERROR_LIMIT]


def check_update(reply: Message, expected: Expectation) -> Update:
    """Return the update of a `trained` reply; raises Refused naming what is wrong with it.

    It is one array that has the length, the type and, by its hash, the keys and shapes of the
    specification; finite; moved from zero, but for what was to stay frozen; trained from this
    round's adapter on all stated pairs.
    """
    config = wire.config_of(reply)
    if wire.text(config, wire.BASE_HASH) != expected.base_hash:
        raise Refused("the update builds on another adapter")
    count, loss = _pair_count(reply, expected), _train_loss(reply, expected)
    records = wire.records(reply.content, ArrayRecord).values()
    arrays = [item for record in records for item in record.items()]
    if len(arrays) != 1:
        raise Refused(f"the update holds {len(arrays)} arrays, not 1")
    ((name, array),) = arrays
    try:
        flat = wire.read_flat(array)
        state = unpack(flat, expected.spec)
    except FedPrefError as error:
        raise Refused(error.what) from None
    bad = [key for key, value in state.items() if not np.isfinite(value).all()]
    if bad:
        raise Refused(f"NaN or infinity in {len(bad)} tensors, first {bad[0]}")
    if state_digest(state) != name or wire.text(config, wire.ADAPTER_HASH) != name:
        raise Refused("the update does not match its hash")
    if not any(value.any() for key, value in state.items() if ".lora_B." in key):
        raise Refused("every lora_B is zero after training: such an adapter is as good as none")
    # What others trained beside the frozen tensors does not fit other ones.
    if any(not np.array_equal(state[key], value) for key, value in expected.frozen.items()):
        raise Refused("lora_A has changed, it was to stay frozen")
    return Update(flat, count, name, loss)


def check_nothing_trained(reply: Message, expected: Expectation) -> None:
    """Raise Refused if a `nothing-trained` reply contradicts what the site stated before."""
    if wire.text(wire.config_of(reply), wire.BASE_HASH) != expected.base_hash:
        raise Refused("the reply is about another adapter")
    if expected.pairs:
        raise Refused(f"no pair was trained, {expected.pairs} were stated in the handshake")


def check_counts(reply: Message) -> EvaluationCounts:
    """Return the counts of an `evaluated` reply; raises Refused naming a count that cannot be."""
    known = {name: value for name, value in _metrics(reply).items() if name in EVALUATED_METRICS}
    try:
        return EvaluationCounts.from_dict(known)
    except ValueError as error:
        raise Refused(f"the evaluation's counts cannot be: {error}") from None


def _metrics(reply: Message) -> MetricRecord:
    return wire.records(reply.content, MetricRecord).get(wire.METRICS, MetricRecord())


def _train_loss(reply: Message, expected: Expectation) -> float | None:
    if not expected.loss:
        return None
    loss = _metrics(reply).get(wire.TRAIN_LOSS)
    if not isinstance(loss, float) or not math.isfinite(loss) or loss < 0:
        raise Refused("the strategy asked for the training loss, and it is no finite number ≥ 0")
    return loss


def _pair_count(reply: Message, expected: Expectation) -> int:
    count = _metrics(reply).get(wire.NUM_EXAMPLES)
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
        raise Refused("the pair count is not a positive integer")
    # The handshake counts after over-long pairs were dropped, and nothing is dropped later.
    if count != expected.pairs:
        raise Refused(f"{count} pairs were trained, {expected.pairs} were stated in the handshake")
    return count
