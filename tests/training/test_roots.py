from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from tiny_models import SETTINGS, with_settings

from fedpref.adapter_state import initial_state, state_digest
from fedpref.errors import AdapterError
from fedpref.training import roots
from fedpref.training.adjustment import Adjustment
from fedpref.training.roots import load_root, root_key, store_root
from fedpref.training.session import model_session
from fedpref.training.trained import Trained


def key(spec: Any, **changes: Any) -> str:
    values = {
        "weights_digest": "w",
        "tokenizer_digest": "t",
        "prompt_digest": "p",
        "pairs_digest": "q",
        "initial_digest": "i",
        "spec": spec,
        "settings": SETTINGS,
        "dtype": "float32",
        "device_type": "cpu",
        "seed": 1,
    }
    return root_key(**(values | changes))


def test_the_key_changes_with_all_that_determines_the_root(spec: Any, monkeypatch: Any) -> None:
    keys = [
        key(spec),
        *(key(spec, **{f"{n}_digest": "x"}) for n in ("weights", "tokenizer", "prompt", "pairs")),
        key(spec, initial_digest="x"),
        key(replace(spec, alpha=1.0)),
        key(spec, dtype="bfloat16"),
        key(spec, device_type="cuda"),
        key(spec, seed=2),
        key(spec, settings=with_settings(sft_learning_rate=0.5)),
        key(spec, settings=with_settings(accumulation=24)),
        key(spec, settings=with_settings(warmup_ratio=0.5)),
        key(spec, settings=with_settings(max_length=99)),
        key(spec, adjustment=Adjustment(proximal_mu=0.1)),
        key(spec, adjustment=Adjustment(proximal_mu=0.2)),
        key(spec, adjustment=Adjustment(freeze_a=True)),
    ]
    monkeypatch.setattr(roots, "METHOD_VERSION", roots.METHOD_VERSION + 1)
    keys.append(key(spec))
    assert len(set(keys)) == len(keys)


def test_what_acts_after_round_0_shares_the_root(spec: Any) -> None:
    assert key(spec) == key(spec, settings=with_settings(dpo_learning_rate=0.5, beta=0.5))
    assert key(spec) == key(spec, adjustment=Adjustment())


@pytest.fixture
def trained(root: Any) -> Trained:
    return Trained(root, 10, 3, 5.9, 1.0 / 3.0, 2.2, 1.5)


def test_round_trip(tmp_path: Path, base: Any, spec: Any, trained: Trained) -> None:
    assert load_root(tmp_path, "k", spec) is None
    store_root(tmp_path, "k", spec, trained, "demo")
    again = load_root(tmp_path, "k", spec)
    assert again is not None
    assert state_digest(again.state) == state_digest(trained.state)
    assert replace(again, state={}) == replace(trained, state={})
    assert [p.name for p in tmp_path.iterdir()] == ["k"]
    with model_session(base) as model:
        PeftModel.from_pretrained(model, tmp_path / "k" / "adapter")


def test_a_damaged_root_is_named(tmp_path: Path, spec: Any, trained: Trained) -> None:
    store_root(tmp_path, "k", spec, trained, "demo")
    record = tmp_path / "k" / "root.json"
    other = replace(trained, state=initial_state(spec, 9))
    good = json.loads(record.read_text())
    store_root(tmp_path, "k", spec, other, "demo")
    record.write_text(json.dumps(good))
    with pytest.raises(AdapterError, match=r"root is damaged.*content hash differs.*delete"):
        load_root(tmp_path, "k", spec)
    record.unlink()
    with pytest.raises(AdapterError, match="root is damaged"):
        load_root(tmp_path, "k", spec)
