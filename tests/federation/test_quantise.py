"""The codec: hand-worked bytes, the error's bound, and what must stay exact."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpref.errors import AdapterError
from fedpref.federation.quantise import (
    BLOCK,
    LARGEST,
    LEVELS,
    SMALLEST_SCALE,
    Format,
    decode,
    encode,
    encoded_size,
)

FORMATS: tuple[Format, ...] = ("float32", "bfloat16", "int8", "int4")
LOSSY = FORMATS[1:]
BLOCKWISE: tuple[Format, ...] = ("int8", "int4")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def there_and_back(values: np.ndarray, format_: Format) -> np.ndarray:
    return decode(encode(values, format_), values.size, format_)


values_of = arrays(
    np.float32,
    st.integers(0, 700),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
    fill=st.just(np.float32(0)),
)
# What training makes: small values of one size with a few far ones.
normals = st.builds(
    lambda seed, size, power: (
        np.random.default_rng(seed).standard_t(3, size=size) * 10.0**power
    ).astype(np.float32),
    st.integers(0, 2**32),
    st.integers(1, 1500),
    st.integers(-30, 20),
)


# By hand


def test_float32_is_its_bits() -> None:
    values = floats(1.0, -0.0, 1e-45, 3.4e38)
    payload = encode(values, "float32")
    assert payload.tobytes() == np.array(values, dtype="<f4").tobytes()
    assert there_and_back(values, "float32").tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F800000, 0x3F80),  # 1.0
        (0x3F807FFF, 0x3F80),  # below the middle: down
        (0x3F808000, 0x3F80),  # the middle, even below: down
        (0x3F808001, 0x3F81),  # above the middle: up
        (0x3F818000, 0x3F82),  # the middle, odd below: up
        (0xBF818000, 0xBF82),  # the same, negative
        (0x3FFFFFFF, 0x4000),  # the carry goes into the exponent
        (0x80000000, 0x8000),  # -0.0 keeps its sign
        (0x00008001, 0x0001),  # below the normal numbers
    ],
)
def test_bfloat16_rounds_to_nearest_ties_to_even(bits: int, rounded: int) -> None:
    value = np.array([bits], dtype=np.uint32).view(np.float32)
    assert encode(value, "bfloat16").view("<u2").tolist() == [rounded]
    assert there_and_back(value, "bfloat16").view(np.uint32).tolist() == [rounded << 16]


def test_int4_by_hand() -> None:
    # The largest magnitude is 7, so that the scale is 1 = 0x3f80; ties go to the even number.
    payload = encode(floats(7, -7, 0.5, 1.5, -3.4), "int4")
    low_then_high = [0x7 | 0x9 << 4, 0x0 | 0x2 << 4, 0xD]
    assert payload.tolist() == [*low_then_high, 0x80, 0x3F]
    assert decode(payload, 5, "int4").tolist() == [7, -7, 0, 2, -3]


def test_int8_by_hand() -> None:
    # 254 / 127 = 2 = 0x4000.
    payload = encode(floats(-254, 3, 5, 0.9, 1.1), "int8")
    assert payload.view(np.int8)[:5].tolist() == [-127, 2, 2, 0, 1]
    assert payload[5:].tolist() == [0x00, 0x40]
    assert decode(payload, 5, "int8").tolist() == [-254, 4, 4, 0, 2]


@pytest.mark.parametrize("format_", BLOCKWISE)
def test_blocks_have_scales_of_their_own(format_: Format) -> None:
    block, levels = BLOCK[format_], LEVELS[format_]
    values = np.zeros(2 * block + 1, dtype=np.float32)
    values[0], values[block], values[-1] = levels, levels * 2.0**-30, -levels * 2.0**20
    assert there_and_back(values, format_).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("format_", "count", "size"),
    [
        ("float32", 5, 20),
        ("bfloat16", 5, 10),
        ("int8", 5, 7),
        ("int8", 129, 133),
        ("int4", 5, 5),
        ("int4", 256, 130),
        ("int4", 257, 133),
        ("int4", 0, 0),
    ],
)
def test_sizes(format_: Format, count: int, size: int) -> None:
    assert encoded_size(count, format_) == size
    assert encode(np.ones(count, dtype=np.float32), format_).shape == (size,)


def test_shares_of_float32() -> None:
    # Qwen3-8B's adapter: 16 bits a scale are next to nothing.
    count = 43_646_976
    shares = {f: encoded_size(count, f) / (4 * count) for f in FORMATS}
    assert shares["bfloat16"] == 0.5
    assert shares["int8"] == pytest.approx(0.2539, abs=1e-4)
    assert shares["int4"] == pytest.approx(0.1270, abs=1e-4)


# For all values


@pytest.mark.parametrize("format_", BLOCKWISE)
@given(values=values_of | normals)
@settings(max_examples=150, deadline=None)
def test_the_error_of_whole_numbers_is_half_a_scale(format_: Format, values: np.ndarray) -> None:
    found = there_and_back(values, format_)
    block, levels = BLOCK[format_], LEVELS[format_]
    for start in range(0, values.size, block):
        part = values[start : start + block].astype(np.float64)
        error = np.abs(found[start : start + block] - part)
        scale = np.abs(part).max() / levels * (1 + 2.0**-8)
        # A block of less than the smallest scale is sent as zeros.
        assert error.max() <= max(scale / 2 * (1 + 1e-6), levels * float(SMALLEST_SCALE) * 1.01)


@given(values=values_of | normals)
@settings(max_examples=100, deadline=None)
def test_the_error_of_bfloat16_is_relative(values: np.ndarray) -> None:
    error = np.abs(there_and_back(values, "bfloat16").astype(np.float64) - values)
    assert np.all(error <= np.abs(values) * 2.0**-8 + 2.0**-134)


@pytest.mark.parametrize("format_", FORMATS)
@given(values=values_of | normals)
@settings(max_examples=75, deadline=None)
def test_what_was_decoded_encodes_to_the_same_bytes(format_: Format, values: np.ndarray) -> None:
    once = encode(values, format_)
    again = encode(decode(once, values.size, format_), format_)
    assert once.tobytes() == again.tobytes()


@pytest.mark.parametrize("format_", FORMATS)
@given(values=normals)
@settings(max_examples=25, deadline=None)
def test_signs_turn_and_powers_of_two_scale(format_: Format, values: np.ndarray) -> None:
    found = there_and_back(values, format_)
    assert np.array_equal(there_and_back(-values, format_), -found)
    assert np.array_equal(there_and_back(values * np.float32(4), format_), found * 4)


@pytest.mark.parametrize("format_", FORMATS)
def test_zeros_stay_exact(format_: Format) -> None:
    values = np.zeros(1000, dtype=np.float32)
    assert not there_and_back(values, format_).any()
    values[700] = 3.0  # only its own block changes
    assert not there_and_back(values, format_)[:512].any()


@pytest.mark.parametrize("format_", BLOCKWISE)
def test_a_block_of_next_to_nothing_is_zeros(format_: Format) -> None:
    values = np.full(10, 1e-44, dtype=np.float32)
    assert not there_and_back(values, format_).any()


@pytest.mark.parametrize("format_", LOSSY)
def test_the_largest_values_stay_finite(format_: Format) -> None:
    found = there_and_back(floats(LARGEST, -LARGEST), format_)
    assert found == pytest.approx([LARGEST, -LARGEST], rel=2.0**-8)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(format_: Format, bad: float) -> None:
    values = np.zeros(300, dtype=np.float32)
    values[299] = bad
    with pytest.raises(AdapterError, match=f"NaN, infinite or too large to be sent as {format_}"):
        encode(values, format_)


@pytest.mark.parametrize("format_", LOSSY)
def test_a_value_near_the_end_of_float32_is_refused(format_: Format) -> None:
    with pytest.raises(AdapterError, match="too large"):
        encode(floats(1.0, -3e38), format_)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 2), dtype=np.float32)])
def test_only_one_flat_float32_array_is_encoded(values: np.ndarray) -> None:
    with pytest.raises(AdapterError, match="one flat float32 array"):
        encode(values, "int8")


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "change", [lambda p: p[:-1], lambda p: np.append(p, p), lambda p: p.astype(np.int16)]
)
def test_bytes_of_another_length_or_kind_are_refused(format_: Format, change: object) -> None:
    payload = encode(np.ones(300, dtype=np.float32), format_)
    with pytest.raises(AdapterError, match=f"for 300 values as {format_}"):
        decode(change(payload), 300, format_)  # type: ignore[operator]


def test_bad_scales_decode_without_a_crash_to_what_they_say() -> None:
    payload = encode(np.ones(4, dtype=np.float32), "int8")
    payload[4:] = [0xC0, 0x7F]  # NaN
    assert np.isnan(decode(payload, 4, "int8")).all()


@pytest.mark.parametrize("format_", LOSSY)
def test_pieces_give_the_bytes_of_the_whole(
    format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    whole = encode(values, format_)
    monkeypatch.setattr("fedpref.federation.quantise._CHUNK", 256)
    assert encode(values, format_).tobytes() == whole.tobytes()
    assert decode(whole, 1001, format_).tobytes() == there_and_back(values, format_).tobytes()


def test_encoding_takes_little_more_memory_than_its_result() -> None:
    values = np.random.default_rng(0).normal(size=1 << 23).astype(np.float32)
    tracemalloc.start()
    payload = encode(values, "int4")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < payload.nbytes + values.nbytes  # 32 MiB of values
