"""`fedpref strategies` lists every name with its options."""

import json

import pytest

from fedpref.cli.strategies import strategies
from fedpref.federation.strategies import NAMED


def test_json_holds_every_strategy_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    strategies(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(NAMED)
    assert found["feddraw"]["options"]["similarity"] == {
        "values": "product | factors | update",
        "default": "product",
    }
    assert all(entry["does"] and entry["source"] for entry in found.values())


def test_the_list_names_every_strategy_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    strategies()
    shown = capsys.readouterr().out
    for name in NAMED:
        assert name in shown
    assert "beta_max=10.0" in shown
    assert "QFedAvg" in shown
