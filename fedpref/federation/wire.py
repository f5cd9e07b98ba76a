"""What travels: the names of records and fields, one flat array an adapter, real byte counts.

Flower's cost is per array, so that an adapter travels as one flat float32 array in the key order of
the handshake's adapter specification. The receiver recomputes its hash.
"""

from collections.abc import Container, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec, AdapterState, pack, state_digest, unpack
from fedpref.errors import AdapterError, RoundError

# Records of a message. Flower's strategies expect these names.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"

# Fields of the config record.
STATUS, SITE, FEDERATION, ROUND = "status", "site", "federation", "round"
ADAPTER_HASH, ROOT_HASH, BASE_HASH = "adapter-hash", "root-hash", "base-hash"
HOLDS, MISSING, ERROR = "holds", "missing", "error"
PARTITION, PARTITIONS = "partition-id", "num-partitions"

# The weight of a reply, under the name that Flower's strategies look for.
NUM_EXAMPLES = "num-examples"

# Values of `status`.
READY, TRAINED, NOTHING_TRAINED = "ready", "trained", "nothing-trained"
EVALUATED, WITHHELD = "evaluated", "withheld"
LACKS, FAILED = "missing", "error"


class Outgoing:
    """Adapters by hash that may have to be sent; each is laid out at most once, for all sites."""

    def __init__(self, states: Iterable[AdapterState], spec: AdapterSpec) -> None:
        self._states = {state_digest(state): state for state in states}
        self._spec = spec
        self._arrays: dict[str, Array] = {}

    def record(self, holds: Container[str]) -> ArrayRecord:
        """Return one flat array, named by its hash, for every adapter that is not held."""
        return ArrayRecord({name: self._flat(name) for name in self._states if name not in holds})

    def _flat(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = Array(pack(self._states[name], self._spec))
        return self._arrays[name]


def read_states(content: RecordDict, spec: AdapterSpec) -> dict[str, AdapterState]:
    """Return the states of a message by hash, each checked against the hash that names it."""
    states = {}
    for name, array in content.array_records.get(ARRAYS, ArrayRecord()).items():
        state = unpack(read_flat(array), spec)
        found = state_digest(state)
        if found != name:
            raise AdapterError(
                f"an adapter hashes to {found[:12]}, announced was {name[:12]}",
                why="it was altered on the way, or both ends lay it out differently",
                fix="both ends must run the same fedpref version",
            )
        states[name] = state
    return states


def read_flat(array: Array) -> NDArray[Any]:
    """Return the numpy array of one wire array; raises AdapterError if it is not a plain one."""
    try:
        return array.numpy()
    except (ValueError, EOFError, OSError, TypeError) as error:
        raise AdapterError(
            "an array cannot be decoded", why=f"{type(error).__name__} while reading it"
        ) from None


def keyed_record(state: AdapterState) -> ArrayRecord:
    """Return the per-key record, in sorted key order, that a Flower strategy is given."""
    return ArrayRecord({key: Array(np.ascontiguousarray(state[key])) for key in sorted(state)})


def read_keyed(record: ArrayRecord) -> AdapterState:
    """Return the state of a per-key record, in sorted key order."""
    return {key: record[key].numpy() for key in sorted(record)}


def config_of(message: Message) -> ConfigRecord:
    """Return the config record of a message; raises RoundError if there is none."""
    record = message.content.config_records.get(CONFIG) if message.has_content() else None
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
