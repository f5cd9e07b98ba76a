"""A flat float32 array in fewer bytes: pure functions, equal bits on every machine.

`float32` keeps every bit. `bfloat16` rounds each value to its upper 16 bits, to nearest, ties to
even. `int8` and `int4` are symmetric and block-wise: a block's scale is its largest magnitude
divided by 127 or 7, rounded to bfloat16, and a value travels as the nearest whole multiple of it.

Layout, all little-endian: the values in order (int4: two a byte, the first in the low half), then
the scales of the blocks in order. The last block may be shorter; nothing is padded but the half
byte of an odd int4 count.

The constants are measured, on normal and heavy-tailed values and on the differences that training
makes. Scales: bfloat16 has float32's range and gives its error to within 1 %, for half the bytes;
float16 underflows at the differences of a learning rate of 5e-6. Blocks: on the differences of real
training, 64 instead of 256 values a scale lowers int4's error from 5.7 % to 5.6 %, and 256 keep
int4 at 12.7 % of float32's bytes.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpref.errors import AdapterError

Format = Literal["float32", "bfloat16", "int8", "int4"]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

# Values that share a scale, and the largest whole multiple of it.
BLOCK = {"int8": 128, "int4": 256}
LEVELS = {"int8": 127, "int4": 7}

# Beyond it, a rounded value might be infinite. float32 itself has no such limit.
LARGEST = 2.0**126
# A block with a smaller scale is sent as zeros: below it float32 loses digits.
SMALLEST_SCALE = np.float32(2.0**-126)

_SCALE_BYTES = 2
_CHUNK = 1 << 20  # values encoded at a time: bounds the memory; whole blocks of every format


def encoded_size(count: int, format_: Format) -> int:
    """Return the bytes that `count` values take in a format."""
    if format_ == "float32":
        return 4 * count
    if format_ == "bfloat16":
        return 2 * count
    return _code_bytes(count, format_) + _SCALE_BYTES * _blocks(count, format_)


def encode(values: Floats, format_: Format) -> Bytes:
    """Return the bytes, shape (encoded_size,), that `decode` reads back.

    The error of a value is 0 for float32; at most 2^-8 of the value for bfloat16; at most half a
    scale for int8 and int4, the scale being at most max|block| / 127 or 7, times 1 + 2^-8. Blocks
    of zeros stay exact, and what was decoded encodes to the same bytes again. Raises AdapterError
    on a value that is NaN, infinite or, unless the format is float32, beyond 2^126.
    """
    values = np.ascontiguousarray(values)
    if values.ndim != 1 or values.dtype != np.float32:
        raise AdapterError(
            f"values of shape {values.shape} and dtype {values.dtype} cannot be encoded",
            fix="give one flat float32 array",
        )
    limit = np.finfo(np.float32).max if format_ == "float32" else LARGEST
    for part in _chunks(values.size):
        if not np.abs(values[part]).max() <= limit:  # NaN compares as false
            raise AdapterError(
                f"a value is NaN, infinite or too large to be sent as {format_}",
                fix="look at the training: a learning rate that is too high makes such values",
            )
    payload = np.empty(encoded_size(values.size, format_), dtype=np.uint8)
    if format_ == "float32":
        payload.view("<f4")[:] = values
        return payload
    if format_ == "bfloat16":
        halves = payload.view("<u2")
        for part in _chunks(values.size):
            halves[part] = _to_bfloat16(values[part])
        return payload
    codes, scales = _split(payload, values.size, format_)
    for part in _chunks(values.size):
        steps, whole = _block_codes(values[part], format_)
        scales[_of_blocks(part, format_)] = steps
        codes[_of_codes(part, format_)] = _packed(whole, format_)
    return payload


def decode(payload: NDArray[Any], count: int, format_: Format) -> Floats:
    """Return the `count` float32 values of `encode`'s bytes; raises AdapterError on their length.

    Bytes that `encode` never writes (a scale that is NaN) decode to what they stand for: whoever
    reads them looks at the values.
    """
    size = encoded_size(count, format_)
    if payload.shape != (size,) or payload.dtype != np.uint8:
        raise AdapterError(
            f"the encoded adapter has shape {tuple(payload.shape)} and dtype {payload.dtype}, "
            f"expected ({size},) uint8 for {count} values as {format_}",
            fix="every site must use the same base model, LoRA rank and targets",
        )
    payload = np.ascontiguousarray(payload)
    if format_ == "float32":
        return payload.view("<f4").astype(np.float32)
    values = np.empty(count, dtype=np.float32)
    if format_ == "bfloat16":
        halves = payload.view("<u2")
        for part in _chunks(count):
            values[part] = _from_bfloat16(halves[part])
        return values
    codes, scales = _split(payload, count, format_)
    for part in _chunks(count):
        whole = _unpacked(codes[_of_codes(part, format_)], part.stop - part.start, format_)
        steps = _from_bfloat16(scales[_of_blocks(part, format_)])
        with np.errstate(invalid="ignore", over="ignore"):
            # Exact: 8 bits of a scale times 7 bits of a whole number fit into float32's 24.
            np.multiply(
                whole,
                np.repeat(steps, BLOCK[format_])[: whole.size],
                out=values[part],
                dtype=np.float32,
            )
    return values


def _block_codes(
    values: Floats, format_: Literal["int8", "int4"]
) -> tuple[NDArray[np.uint16], NDArray[np.int8]]:
    """Return the scales (blocks,) as bfloat16 bits and the whole multiples (values,)."""
    block, levels = BLOCK[format_], LEVELS[format_]
    blocks = -(-values.size // block)
    padded = np.zeros(blocks * block, dtype=np.float32)
    padded[: values.size] = values
    table = padded.reshape(blocks, block)
    bits = _to_bfloat16(np.abs(table).max(axis=1) / np.float32(levels))
    scales = _from_bfloat16(bits)
    bits[scales < SMALLEST_SCALE] = 0
    # A scale rounded down leaves the largest value at most at 127.497 or 7.03: rint stays in range.
    table /= np.where(bits, scales, np.float32(np.inf))[:, None]
    return bits, np.rint(padded[: values.size]).astype(np.int8)


def _to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Return the upper halves of the values' bits, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bfloat16(bits: NDArray[Any]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _packed(whole: NDArray[np.int8], format_: Literal["int8", "int4"]) -> Bytes:
    if format_ == "int8":
        return whole.view(np.uint8)
    nibbles = np.zeros(whole.size + whole.size % 2, dtype=np.uint8)
    nibbles[: whole.size] = whole.view(np.uint8) & 0x0F
    return nibbles[0::2] | (nibbles[1::2] << np.uint8(4))


def _unpacked(codes: Bytes, count: int, format_: Literal["int8", "int4"]) -> NDArray[np.int8]:
    if format_ == "int8":
        return codes.view(np.int8)
    nibbles = np.empty(2 * codes.size, dtype=np.uint8)
    nibbles[0::2], nibbles[1::2] = codes & 0x0F, codes >> 4
    # Two's complement of four bits: 8..15 stand for -8..-1.
    return (nibbles[:count] ^ 8).view(np.int8) - np.int8(8)


def _code_bytes(count: int, format_: Literal["int8", "int4"]) -> int:
    return count if format_ == "int8" else -(-count // 2)


def _blocks(count: int, format_: Literal["int8", "int4"]) -> int:
    return -(-count // BLOCK[format_])


def _split(
    payload: Bytes, count: int, format_: Literal["int8", "int4"]
) -> tuple[Bytes, NDArray[Any]]:
    """Return the views of the codes and of the scales, as bfloat16 bits."""
    end = _code_bytes(count, format_)
    return payload[:end], payload[end:].view("<u2")


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, _CHUNK):
        yield slice(start, min(start + _CHUNK, count))


def _of_codes(part: slice, format_: Literal["int8", "int4"]) -> slice:
    return slice(_code_bytes(part.start, format_), _code_bytes(part.stop, format_))


def _of_blocks(part: slice, format_: Literal["int8", "int4"]) -> slice:
    return slice(_blocks(part.start, format_), _blocks(part.stop, format_))
