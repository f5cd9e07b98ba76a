"""benchmarks/phases.py: the stopwatch and the table, by hand; the names that it times exist."""

import importlib
import time
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def phases(benchmark_module: Any) -> Any:
    return benchmark_module("phases")


def test_an_inner_stretch_is_not_counted_twice(phases: Any, monkeypatch: Any) -> None:
    ticks = iter([0.0, 1.0, 3.0, 3.0, 7.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    watch = phases.Stopwatch()
    with watch.time("outer"):  # 0 … 10
        with watch.time("inner"):  # 1 … 3
            pass
        with watch.time("inner"):  # 3 … 7
            pass
    assert dict(watch.seconds) == {"outer": 4.0, "inner": 6.0}


def test_the_table_sums_and_compares(phases: Any) -> None:
    seconds = {
        "start": {phases.IMPORT: 5.0, phases.REST: 1.0},
        "round 0": {"SFT": 8.0, "generation": 2.0},
        "round 1": {"DPO": 12.0},
    }
    flower = {"start": 10.0, "round 0": 9.0, "round 1": 8.0, "whole": 27.0}
    lines = phases.show(seconds, flower, 2).splitlines()
    rows = {line[:28].strip(): line[28:].split() for line in lines}
    assert rows["SFT"] == ["8.00"]
    assert rows["sum"] == ["6.00", "10.00", "12.00"]
    assert rows["sum / 2 cores"] == ["3.00", "5.00", "6.00"]
    assert rows["beyond sum / cores"] == ["7.00", "4.00", "2.00"]
    assert "27.0 s" in lines[-1]
    assert "DPO" not in phases.show({"round 0": {"SFT": 1.0}}, None, 2)
    assert max(map(len, lines)) <= 80


def test_an_adapter_arrives_as_it_was_at_every_receiver(
    phases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("a.lora_A.weight", "a.lora_B.weight")
    spec = phases.AdapterSpec(1, 2, False, ("a",), keys, ((1, 3), (2, 1)))
    state = phases.initial_state(spec, 0)
    wire = importlib.import_module("fedpref.federation.wire")
    calls: list[str] = []
    for name in ("pack", "unpack", "state_digest"):
        original = getattr(wire, name)

        def call(*args: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(wire, name, call)
    found = phases.received(state, spec, 3)
    assert found.keys() == state.keys()
    assert all(np.array_equal(found[key], state[key]) for key in keys)
    assert calls == ["state_digest", "pack", *["unpack", "state_digest"] * 3]


def test_every_timed_function_is_there(phases: Any) -> None:
    for target in phases.TIMED:
        module, _, name = target.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
