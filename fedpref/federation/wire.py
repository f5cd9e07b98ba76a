"""What travels: the names of records and fields, one flat array an adapter, real byte counts.

Flower's cost is per array, so that an adapter travels as one flat array in the key order of the
handshake's adapter specification: whole in float32, or as an encoded difference to an adapter that
the receiver holds (another `wire` in the run config, or where only lora_B has moved). The receiver
recomputes its hash.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec, AdapterState, pack, state_digest, unpack
from fedpref.errors import AdapterError, RoundError
from fedpref.federation.difference import Difference, apply_difference, apply_flat, split_name
from fedpref.federation.quantise import Format
from fedpref.residual import spec_of, spec_of_size

# Records of a message. Flower's strategies expect these names.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"

# Fields of the config record.
STATUS, SITE, FEDERATION, ROUND = "status", "site", "federation", "round"
ADAPTER_HASH, ROOT_HASH, BASE_HASH = "adapter-hash", "root-hash", "base-hash"
HOLDS, MISSING, ERROR = "holds", "missing", "error"
PARTITION, PARTITIONS = "partition-id", "num-partitions"

# The weight of a reply, under the name that Flower's strategies look for.
NUM_EXAMPLES = "num-examples"
# Sent only if the strategy asks for it; the name that Flower's QFedAvg looks for.
TRAIN_LOSS = "train_loss"

# Values of `status`.
READY, TRAINED, NOTHING_TRAINED = "ready", "trained", "nothing-trained"
EVALUATED, WITHHELD = "evaluated", "withheld"
LACKS, FAILED = "missing", "error"


Kind = TypeVar("Kind", ArrayRecord, ConfigRecord, MetricRecord)


class Outgoing:
    """Adapters by hash that may have to be sent; each is laid out at most once, for all sites.

    `difference` is the lean way to one of them, for a site that holds the adapter it starts from.
    """

    def __init__(
        self,
        states: Iterable[AdapterState],
        spec: AdapterSpec,
        difference: Difference | None = None,
    ) -> None:
        self._states = {state_digest(state): state for state in states}
        self._spec, self._difference = spec, difference
        self._arrays: dict[str, Array] = {}

    def record(self, holds: Container[str]) -> ArrayRecord:
        """Return one flat array for every adapter that is not held, named by what it gives."""
        lacking = (name for name in self._states if name not in holds)
        return ArrayRecord(dict(self._named(name, holds) for name in lacking))

    def _named(self, name: str, holds: Container[str]) -> tuple[str, Array]:
        lean = self._difference
        if lean is not None and lean.after == name and lean.before in holds:
            return lean.name, self._once(lean.name, lambda: lean.payload)
        state = self._states[name]
        return name, self._once(name, lambda: pack(state, spec_of(state, self._spec)))

    def _once(self, name: str, flat: Callable[[], NDArray[Any]]) -> Array:
        if name not in self._arrays:
            self._arrays[name] = Array(flat())
        return self._arrays[name]


@dataclass(frozen=True)
class Incoming:
    """What a message brought: adapters by hash, and what its other differences start from.

    `unusable` are hashes of adapters that this end does not hold as the other one does.
    """

    states: dict[str, AdapterState]
    unusable: list[str]


def read_states(
    content: RecordDict,
    spec: AdapterSpec,
    format_: Format = "float32",
    held: Callable[[str], AdapterState | None] = lambda name: None,
) -> Incoming:
    """Return the adapters of a message, each checked against the hash that names it.

    `held` looks up the adapter that a difference starts from; a difference that does not lead to
    its hash from there is unusable: its sender has the whole adapter. Raises AdapterError if a
    whole adapter does not match its hash, or if an array is malformed.
    """
    states, unusable = {}, []
    for name, array in records(content, ArrayRecord).get(ARRAYS, ArrayRecord()).items():
        after, before, only_b = split_name(name)
        if before:
            start = held(before)
            if start is None:
                unusable.append(before)
                continue
            state = apply_difference(start, read_flat(array), spec, format_, only_b=only_b)
            if state_digest(state) != after:
                unusable.append(before)
                continue
        else:
            flat = read_flat(array)
            state = unpack(flat, spec_of_size(flat.size, spec))
            found = state_digest(state)
            if found != name:
                raise AdapterError(
                    f"an adapter hashes to {found[:12]}, announced was {name[:12]}",
                    why="it was altered on the way, or both ends lay it out differently",
                    fix="both ends must run the same fedpref version",
                )
        states[after] = state
    return Incoming(states, unusable)


def make_whole(
    content: RecordDict, base: str, start: AdapterState, spec: AdapterSpec, format_: Format
) -> None:
    """Replace a difference in an update by the whole flat adapter that it gives.

    `base` is the hash of `start`, what the sites of the round train from. The result is named as
    the sender names it and not checked: that is the guards' part, as for an update that came whole.
    Raises AdapterError if the difference starts from another adapter or is malformed.
    """
    for record in records(content, ArrayRecord).values():
        for name in list(record):
            after, before, only_b = split_name(name)
            if not before:
                continue
            if before != base:
                raise AdapterError("the update is a difference to another adapter")
            flat = apply_flat(start, read_flat(record.pop(name)), spec, format_, only_b=only_b)
            record[after] = Array(flat)


def read_flat(array: Array) -> NDArray[Any]:
    """Return the numpy array of one wire array; raises AdapterError if it is not a plain one."""
    try:
        value = array.numpy()
    except Exception as error:
        # A stranger's bytes: numpy also raises MemoryError, OverflowError, TokenError, BadZipFile …
        raise AdapterError(
            "an array cannot be decoded", why=f"{type(error).__name__} while reading it"
        ) from None
    if not isinstance(value, np.ndarray):
        raise AdapterError("an array cannot be decoded", why="it is an archive")
    return value


def keyed_record(state: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the per-key record, in sorted key order, that a Flower strategy is given."""
    return ArrayRecord({key: Array(np.ascontiguousarray(state[key])) for key in sorted(state)})


def read_keyed(record: ArrayRecord) -> AdapterState:
    """Return the state of a per-key record, in sorted key order."""
    return {key: record[key].numpy() for key in sorted(record)}


def records(content: RecordDict, kind: type[Kind]) -> dict[str, Kind]:
    """Return the records of one kind by name.

    Flower's own views (`content.array_records` …) are reference cycles: through one, all arrays of
    a message stay in memory until Python's collector comes by.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def config_of(message: Message) -> ConfigRecord:
    """Return the config record of a message; raises RoundError if there is none."""
    record = records(message.content, ConfigRecord).get(CONFIG) if message.has_content() else None
    if record is None:
        raise RoundError("the message has no config record")
    return record


def text(config: ConfigRecord, name: str) -> str:
    """Return a text field; raises RoundError if it is absent or of another type."""
    value = config.get(name)
    if not isinstance(value, str):
        raise RoundError(f"the message has no text field {name!r}")
    return value


def number(config: ConfigRecord, name: str) -> int:
    """Return an integer field; raises RoundError if it is absent or of another type."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RoundError(f"the message has no integer field {name!r}")
    return value


def texts(config: ConfigRecord, name: str) -> tuple[str, ...]:
    """Return a field that is a list of texts; an absent one is empty."""
    value = config.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RoundError(f"the message field {name!r} is not a list of texts")
    return tuple(str(item) for item in value)


def content_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of the messages' records as Flower serialises them (arrays in full)."""
    total = 0
    for message in messages:
        if not message.has_content():
            continue
        for record in message.content.values():
            if isinstance(record, ArrayRecord):
                total += sum(len(array.data) for array in record.values())
            elif isinstance(record, ConfigRecord | MetricRecord):
                total += len(record.deflate())
    return total
