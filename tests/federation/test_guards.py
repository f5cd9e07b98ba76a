"""One reply by itself: whatever its bytes are, it is accepted or refused by name."""

import gc
import io
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, random_state
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.adapter_state import AdapterState, initial_state, pack, state_digest, unpack
from fedpref.errors import RoundError
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation import wire
from fedpref.federation.cohort_guards import ExtraMetrics
from fedpref.federation.guards import (
    EVALUATED_METRICS,
    Expectation,
    Refused,
    check_counts,
    check_nothing_trained,
    check_reply,
    check_update,
)

BASE = "b" * 64
EXPECTED = Expectation(
    site="site-a", federation="demo", round=2, spec=SPEC, base_hash=BASE, pairs=3
)
A_KEY, B_KEY = SPEC.keys
STATUSES = (wire.TRAINED, wire.NOTHING_TRAINED)


@pytest.fixture(autouse=True, scope="module")
def _task() -> None:
    # Flower stamps messages with the task it runs in.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def reply_of(
    state: AdapterState,
    *,
    data: bytes | None = None,
    count: Any = 3,
    status: str = wire.TRAINED,
    **config: Any,
) -> Message:
    """A reply of `site-a` to round 2; `data` replaces the bytes of its array."""
    name = state_digest(state)
    array = Array(np.concatenate([np.ravel(state[key]) for key in sorted(state)]))
    if data is not None:
        array = Array("float32", (SPEC.parameter_count,), "numpy.ndarray", data)
    fields = {
        wire.STATUS: status,
        wire.SITE: "site-a",
        wire.FEDERATION: "demo",
        wire.ROUND: 2,
        wire.HOLDS: [BASE],
        wire.BASE_HASH: BASE,
        wire.ADAPTER_HASH: name,
    }
    fields |= {key.replace("_", "-"): value for key, value in config.items()}
    return Message(
        RecordDict(
            {
                wire.CONFIG: ConfigRecord(fields),
                wire.ARRAYS: ArrayRecord({name: array}),
                wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: count}),
            }
        ),
        dst_node_id=1,
        message_type="train",
    )


def test_a_good_update_comes_through_bit_for_bit() -> None:
    state = random_state(1)
    reply = reply_of(state)
    assert check_reply(reply, EXPECTED, STATUSES) == wire.TRAINED
    update = check_update(reply, EXPECTED)
    assert update.flat.tobytes() == pack(state, SPEC).tobytes()
    assert (update.pair_count, update.adapter_hash) == (3, state_digest(state))


def test_a_reply_that_was_looked_at_does_not_wait_for_the_garbage_collector() -> None:
    state = random_state(1)
    reply = reply_of(state)
    array = weakref.ref(reply.content[wire.ARRAYS][state_digest(state)])
    gc.disable()
    try:
        check_reply(reply, EXPECTED, STATUSES)
        wire.make_whole(reply.content, BASE, state, SPEC, "float32")
        update = check_update(reply, EXPECTED)
        assert ExtraMetrics().warning("site-a", reply, EXPECTED.metrics) is None
        assert array() is not None
        del reply
        assert array() is None
    finally:
        gc.enable()
    assert update.pair_count == 3


def test_a_loss_is_looked_at_only_if_it_was_asked_for() -> None:
    asked = replace(EXPECTED, loss=True)
    reply = reply_of(random_state(1))
    reply.content[wire.METRICS][wire.TRAIN_LOSS] = 0.75
    assert check_update(reply, EXPECTED).loss is None
    assert check_update(reply, asked).loss == 0.75
    assert EXPECTED.metrics == {wire.NUM_EXAMPLES}
    assert asked.metrics == {wire.NUM_EXAMPLES, wire.TRAIN_LOSS}


@pytest.mark.parametrize("loss", [None, np.nan, np.inf, -0.1, 1, [0.5]])
def test_an_asked_loss_that_is_none_is_refused(loss: Any) -> None:
    reply = reply_of(random_state(1))
    if loss is not None:
        reply.content[wire.METRICS][wire.TRAIN_LOSS] = loss
    with pytest.raises(Refused, match="asked for the training loss"):
        check_update(reply, replace(EXPECTED, loss=True))


# Keys, shapes, dtypes


def test_other_keys_are_refused_although_the_array_fits() -> None:
    state = random_state(1)
    renamed = {A_KEY: state[A_KEY], B_KEY.replace(".weight", ".default.weight"): state[B_KEY]}
    with pytest.raises(Refused, match="does not match its hash"):
        check_update(reply_of(renamed), EXPECTED)


def test_other_shapes_are_refused_although_the_length_fits() -> None:
    state = random_state(1)
    turned = {A_KEY: state[A_KEY].T.copy(), B_KEY: state[B_KEY].T.copy()}
    with pytest.raises(Refused, match="does not match its hash"):
        check_update(reply_of(turned), EXPECTED)


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i4", "<c8", "|b1"])
def test_another_dtype_is_refused_by_name(dtype: str) -> None:
    values = pack(random_state(1), SPEC).astype(dtype)
    with pytest.raises(Refused, match=f"dtype {values.dtype}, expected \\(20,\\) float32"):
        check_update(reply_of(random_state(1), data=npy(values)), EXPECTED)


# Values


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", SPEC.keys)
def test_a_value_that_is_not_finite_is_refused_with_its_tensor(key: str, value: float) -> None:
    state = random_state(1)
    state[key].flat[3] = value
    with pytest.raises(Refused, match=f"NaN or infinity in 1 tensors, first {key}"):
        check_update(reply_of(state), EXPECTED)


def test_an_update_whose_lora_b_is_all_zero_is_refused() -> None:
    # What a trainer leaves that stepped on nothing: the initial adapter, under a good hash.
    with pytest.raises(Refused, match="every lora_B is zero"):
        check_update(reply_of(initial_state(SPEC, 7)), EXPECTED)
    state = initial_state(SPEC, 7)
    state[B_KEY][0, 0] = -0.0
    with pytest.raises(Refused, match="every lora_B is zero"):
        check_update(reply_of(state), EXPECTED)
    state[B_KEY][0, 0] = 1e-30
    check_update(reply_of(state), EXPECTED)


def test_a_lora_a_of_zero_is_no_fault() -> None:
    state = random_state(1)
    state[A_KEY][:] = 0
    check_update(reply_of(state), EXPECTED)


# Pair counts


@pytest.mark.parametrize("count", [0, -1, 3.0, [3]])
def test_a_pair_count_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(Refused, match="not a positive integer"):
        check_update(reply_of(random_state(1), count=count), EXPECTED)


@pytest.mark.parametrize("count", [1, 2, 4, 2**62])
def test_any_other_count_than_the_handshakes_is_refused(count: int) -> None:
    with pytest.raises(Refused, match=f"{count} pairs were trained, 3 were stated"):
        check_update(reply_of(random_state(1), count=count), EXPECTED)


def test_a_missing_count_is_refused() -> None:
    reply = reply_of(random_state(1))
    del reply.content[wire.METRICS]
    with pytest.raises(Refused, match="not a positive integer"):
        check_update(reply, EXPECTED)


def test_nothing_trained_fits_a_site_without_pairs_only() -> None:
    reply = reply_of(random_state(1), status=wire.NOTHING_TRAINED)
    with pytest.raises(Refused, match="no pair was trained, 3 were stated"):
        check_nothing_trained(reply, EXPECTED)
    none = Expectation("site-a", "demo", 2, SPEC, BASE, 0)
    check_nothing_trained(reply, none)
    with pytest.raises(Refused, match="another adapter"):
        check_nothing_trained(
            reply_of(random_state(1), status=wire.NOTHING_TRAINED, base_hash="c" * 64), none
        )


# Belonging


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("round", 1, "another round"),
        ("round", 3, "another round"),
        ("site", "site-b", "another site"),
        ("federation", "x", "another federation"),
        ("status", "great", "unexpected status"),
        ("round", "2", "no integer field 'round'"),
        ("status", 1, "no text field 'status'"),
        # Found before the update is stored, not after.
        ("holds", [1], "'holds' is not a list of texts"),
        ("holds", "all", "'holds' is not a list of texts"),
    ],
)
def test_a_reply_for_something_else_is_refused(field: str, value: Any, reason: str) -> None:
    with pytest.raises(RoundError, match=reason):
        check_reply(reply_of(random_state(1), **{field: value}), EXPECTED, STATUSES)


def test_an_update_on_another_adapter_is_refused() -> None:
    with pytest.raises(Refused, match="builds on another adapter"):
        check_update(reply_of(random_state(1), base_hash="c" * 64), EXPECTED)


# Hostile bytes


def npy(array: np.ndarray, *, pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickle)
    return stream.getvalue()


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.zeros(3))
    return stream.getvalue()


def header(text: str) -> bytes:
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def shaped(shape: str) -> bytes:
    return header("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        npz(),
        b"PK\x03\x04 no archive",
        npy(np.array([{}], dtype=object), pickle=True),
        npy(np.zeros(20, dtype=[("a", "<f4")])),
        shaped("(9999999999999,)"),
        shaped("(99999999999999999999999,)"),
        shaped("(-5,)"),
        shaped("(20,)"),
        header("((((((("),
        header("(" * 9000),
        b"\x93NUMPY\x09\x00abc",
    ],
)
def test_hostile_bytes_are_refused_and_end_nothing(data: bytes) -> None:
    with pytest.raises(Refused):
        check_update(reply_of(random_state(1), data=data), EXPECTED)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 207), st.integers(0, 20))
def test_damaged_bytes_are_refused(noise: bytes, at: int, cut: int) -> None:
    good = npy(pack(random_state(1), SPEC))
    damaged = good[:at] + noise + good[at + cut + 1 :]
    try:
        update = check_update(reply_of(random_state(1), data=damaged), EXPECTED)
    except Refused:
        return
    # Blanks in a header, and what follows the values, do not matter; the values do.
    assert update.flat.tobytes() == pack(random_state(1), SPEC).tobytes()


FIELD = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=2)
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["status", "site", "round", "holds", "x"]), FIELD), FIELD)
def test_strange_fields_raise_nothing_but_refusals(config: dict[str, Any], count: Any) -> None:
    reply = reply_of(random_state(1), count=count if isinstance(count, int | list) else 0, **config)
    for check in (
        lambda: check_reply(reply, EXPECTED, STATUSES),
        lambda: check_update(reply, EXPECTED),
        lambda: check_nothing_trained(reply, EXPECTED),
        lambda: check_counts(reply),
    ):
        # Refused and the wire's errors: what the round loop takes for a refusal.
        with suppress(RoundError):
            check()


@settings(deadline=None)
@given(st.integers(0, 19), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_value_changed_on_the_way_is_refused(place: int, value: float) -> None:
    state = random_state(1)
    flat = pack(state, SPEC)
    flat[place] = value
    if state_digest(unpack(flat, SPEC)) == state_digest(state):
        return
    with pytest.raises(Refused, match="does not match its hash"):
        check_update(reply_of(state, data=npy(flat)), EXPECTED)


# Counts


def evaluated(**values: Any) -> Message:
    counts = EvaluationCounts(reports=40, tp=5, projected=40).to_dict()
    return Message(
        RecordDict({wire.METRICS: MetricRecord({**counts, **values})}),
        dst_node_id=1,
        message_type="evaluate",
    )


def test_extra_metrics_are_dropped_and_the_rest_counts() -> None:
    reply = evaluated(**{"train-loss": 0.5, "note": [1, 2]})
    assert check_counts(reply) == EvaluationCounts(reports=40, tp=5, projected=40)
    assert "tp" in EVALUATED_METRICS
    more = reply_of(random_state(1))
    more.content[wire.METRICS]["train-loss"] = 0.5
    assert check_update(more, EXPECTED).pair_count == 3


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tp": -1}, "tp is negative"),
        ({"tp": 1.0}, "tp is not an integer"),
        ({"projected": 41}, "projected is larger than reports"),
    ],
)
def test_counts_that_cannot_be_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_counts(evaluated(**values))


def test_a_missing_count_of_the_evaluation_is_refused() -> None:
    reply = evaluated(more=1)
    del reply.content[wire.METRICS]["tp"]
    with pytest.raises(Refused, match="missing tp"):
        check_counts(reply)
