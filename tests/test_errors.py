"""Errors say what, where, why and what to do, and survive a trip between processes."""

import pickle

import pytest

from fedpref.errors import ConfigError, DataError, FedPrefErrors, raise_all


def test_message() -> None:
    error = DataError(
        "the report is empty",
        why="an empty text would train as normal",
        fix="remove the row",
        file="reports.jsonl",
        line=3,
        site="north",
    )
    assert str(error) == (
        "[FP200] site north, reports.jsonl:3: the report is empty. "
        "an empty text would train as normal. remove the row."
    )


def test_pickle() -> None:
    error = pickle.loads(pickle.dumps(DataError("x", key="k", line=2, file="f")))
    assert isinstance(error, DataError)
    assert (str(error), error.key, error.line) == ("[FP200] f:2, key k: x.", "k", 2)


def test_several_at_once() -> None:
    one, two = ConfigError("a"), ConfigError("b")
    raise_all([])
    with pytest.raises(ConfigError):
        raise_all([one])
    with pytest.raises(FedPrefErrors) as caught:
        raise_all([one, two])
    assert str(caught.value) == "[FP100] a.\n[FP100] b."
    assert caught.value.code == "FP100"
    assert str(pickle.loads(pickle.dumps(caught.value))) == "[FP100] a.\n[FP100] b."
