"""An adapter as its encoded difference to another one that both ends of the wire hold.

Training moves an adapter little, so that a difference has few significant digits. It is encoded
once, by whoever makes the adapter; the adapter that counts from then on is the one that the
difference gives back, because that is the one that the other end can hold, bit for bit. Where no
lora_A has moved, as under the strategy `ffa`, only lora_B travels. Of a residual beside the adapter
(see `fedpref.residual`), what has been added to it travels, in float32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpref.adapter_state import (
    AdapterSpec,
    AdapterState,
    check_state,
    pack,
    state_digest,
    unpack,
)
from fedpref.federation.aggregation import concatenate
from fedpref.federation.quantise import Bytes, Floats, Format, decode, encode, encoded_size
from fedpref.residual import rank_of, spec_of, split

# Between the two hashes of a difference's name; a whole adapter's name is one hash.
_FROM = ":"
_ONLY_B = ":B"


@dataclass(frozen=True)
class Difference:
    """The encoded way from the adapter with the hash `before` to the one with the hash `after`.

    `only_b`: every lora_A is as before, and the payload is about lora_B alone. What the payload has
    beyond that is in float32: the rows of A and columns of B that `after` has and `before` has not.
    """

    before: str
    after: str
    payload: Bytes
    only_b: bool

    @property
    def name(self) -> str:
        """What it is called in a message: "<after>:<before>", or "<after>:<before>:B"."""
        return self.after + _FROM + self.before + _ONLY_B * self.only_b


def split_name(name: str) -> tuple[str, str, bool]:
    """Return (after, before, only_b) of a name in a message; a whole adapter's `before` is ""."""
    after, _, before = name.partition(_FROM)
    return after, before.removesuffix(_ONLY_B), before.endswith(_ONLY_B)


def encode_difference(
    before: AdapterState, after: AdapterState, spec: AdapterSpec, format_: Format
) -> tuple[Difference | None, AdapterState]:
    """Return the encoded difference, and the adapter that it gives: `after` but for rounding.

    It is None if it would be no shorter than the adapter: in float32, which rounds nothing, unless
    lora_B alone has moved or there is a residual; in every format, if the residual of `after` does
    not begin with that of `before`. Both states must fit `spec`, but for a residual. Raises
    AdapterError if they do not, or if the difference is not finite.
    """
    (old, held), (new, residual) = split(before, spec.rank), split(after, spec.rank)
    only_b = all(np.array_equal(new[key], old[key]) for key in spec.keys if _is_a(key))
    if format_ == "float32" and not only_b and held is None:
        return None, after
    kept, added = split(residual or {}, rank_of(held or {}))
    if held and not (kept and all(np.array_equal(kept[key], held[key]) for key in spec.keys)):
        return None, after
    check_state(after, spec_of(after, spec))
    values = np.concatenate([new[key].ravel() for key in _moving(spec, only_b)])
    if format_ != "float32":
        values -= np.concatenate([old[key].ravel() for key in _moving(spec, only_b)])
    payload = encode(values, format_)
    if added is not None:
        columns = pack(added, spec.at_rank(rank_of(added)))
        payload = np.concatenate([payload, encode(columns, "float32")])
    given = apply_difference(before, payload, spec, format_, only_b=only_b)
    return Difference(state_digest(before), state_digest(given), payload, only_b), given


def apply_difference(
    before: AdapterState,
    payload: NDArray[Any],
    spec: AdapterSpec,
    format_: Format,
    *,
    only_b: bool = False,
) -> AdapterState:
    """Return `before` + the decoded difference, added in float32: equal bits at both ends.

    Raises AdapterError if the payload's length or dtype is wrong; its values are not looked at
    unless there is a residual, which must be finite.
    """
    old, held = split(before, spec.rank)
    size = encoded_size(sum(old[key].size for key in _moving(spec, only_b)), format_)
    per_rank = spec.parameter_count // spec.rank
    rank, rest = divmod(payload.size - size, 4 * per_rank)
    if rank <= 0 or rest:  # nothing is added, or the next line says what is wrong
        size, rank = payload.size, 0
    given = unpack(apply_flat(old, payload[:size], spec, format_, only_b=only_b), spec)
    if rank:
        columns = decode(payload[size:], rank * per_rank, "float32")
        added = unpack(columns, spec.at_rank(rank))
    parts = [given, *([held] if held else []), *([added] if rank else [])]
    return concatenate(parts) if len(parts) > 1 else given


def apply_flat(
    before: AdapterState,
    payload: NDArray[Any],
    spec: AdapterSpec,
    format_: Format,
    *,
    only_b: bool = False,
) -> Floats:
    """Return the same as one flat array in the key order of `spec`; `before` has no residual."""
    moving = _moving(spec, only_b)
    values = decode(payload, sum(before[key].size for key in moving), format_)
    flat, start = pack(before, spec), 0
    for key, place in moving.items():
        stop = start + before[key].size
        if format_ == "float32":  # x + (y − x) need not be y: there, the values travel themselves
            flat[place] = values[start:stop]
        else:
            flat[place] += values[start:stop]
        start = stop
    return flat


def _moving(spec: AdapterSpec, only_b: bool) -> dict[str, slice]:
    """Return the places of the tensors that a payload is about."""
    return {key: place for key, place in spec.places.items() if not (only_b and _is_a(key))}


def _is_a(key: str) -> bool:
    return ".lora_A." in key
