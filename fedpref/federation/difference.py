"""An adapter as its encoded difference to another one that both ends of the wire hold.

Training moves an adapter little, so that a difference has few significant digits. It is encoded
once, by whoever makes the adapter; the adapter that counts from then on is the one that the
difference gives back, because that is the one that the other end can hold, bit for bit.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec, AdapterState, pack, state_digest, unpack
from fedpref.federation.quantise import Bytes, Floats, Format, decode, encode

# Between the two hashes of a difference's name; a whole adapter's name is one hash.
_FROM = ":"


@dataclass(frozen=True)
class Difference:
    """The encoded way from the adapter with the hash `before` to the one with the hash `after`."""

    before: str
    after: str
    payload: Bytes

    @property
    def name(self) -> str:
        """What the difference is called in a message: "<after>:<before>"."""
        return self.after + _FROM + self.before


def split_name(name: str) -> tuple[str, str]:
    """Return (after, before) of a name in a message; `before` is "" for a whole adapter."""
    after, _, before = name.partition(_FROM)
    return after, before


def encode_difference(
    before: AdapterState, after: AdapterState, spec: AdapterSpec, format_: Format
) -> tuple[Difference, AdapterState]:
    """Return the encoded difference, and the adapter that it gives: `after` but for rounding.

    Both states must fit `spec`. Raises AdapterError if they do not, or if the difference is not
    finite.
    """
    flat = pack(after, spec)
    for part, key in _parts(spec):
        flat[part] -= before[key].ravel()
    payload = encode(flat, format_)
    del flat
    given = apply_difference(before, payload, spec, format_)
    return Difference(state_digest(before), state_digest(given), payload), given


def apply_difference(
    before: AdapterState, payload: NDArray[Any], spec: AdapterSpec, format_: Format
) -> AdapterState:
    """Return `before` + the decoded difference, added in float32: equal bits at both ends.

    Raises AdapterError if the payload's length or dtype is wrong; its values are not looked at.
    """
    return unpack(apply_flat(before, payload, spec, format_), spec)


def apply_flat(
    before: AdapterState, payload: NDArray[Any], spec: AdapterSpec, format_: Format
) -> Floats:
    """Return what `apply_difference` does as one flat array in the key order of `spec`."""
    flat = decode(payload, spec.parameter_count, format_)
    for part, key in _parts(spec):
        flat[part] += before[key].ravel()
    return flat


def _parts(spec: AdapterSpec) -> Iterator[tuple[slice, str]]:
    start = 0
    for key, shape in zip(spec.keys, spec.shapes, strict=True):
        stop = start + math.prod(shape)
        yield slice(start, stop), key
        start = stop
