from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import SETTINGS, byte_tokenizer, make_pairs, with_settings

from fedpref.errors import DataError, TrainingError
from fedpref.training import reference
from fedpref.training.base_model import BaseModel
from fedpref.training.encoding import EncodedPair
from fedpref.training.reference import reference_logps, sequence_logps
from fedpref.training.session import adapter_session

PAIRS = make_pairs(4)


@pytest.fixture
def forwards(monkeypatch: Any) -> list[str]:
    """The ids of the pairs that cost a forward."""
    seen: list[str] = []
    original = reference._compute

    def spy(base: Any, spec: Any, state: Any, runs: Any) -> Any:
        seen.extend(pair.pair_id for together, _ in runs for pair in together)
        return original(base, spec, state, runs)

    monkeypatch.setattr(reference, "_compute", spy)
    return seen


@pytest.mark.parametrize("engine", ["tree", "trl"])
def test_logps_are_sums_over_the_response_tokens(
    base: Any, spec: Any, root: Any, engine: str
) -> None:
    logps = sequence_logps(base, spec, root, PAIRS, with_settings(engine=engine))
    with adapter_session(base, spec, root) as model, torch.no_grad():
        for pair in PAIRS:
            for ids, found in zip(
                (pair.chosen_ids, pair.rejected_ids), logps[pair.pair_id], strict=True
            ):
                logits = model(torch.tensor([[*pair.prompt_ids, *ids]])).logits[0]
                rows = torch.log_softmax(logits[len(pair.prompt_ids) - 1 : -1], -1)
                expected = rows.gather(1, torch.tensor(ids)[:, None]).sum().item()
                assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.contract
@pytest.mark.parametrize("engine", ["tree", "trl"])
def test_the_end_of_turn_counts_where_padding_is_eos(
    base: Any, spec: Any, root: Any, engine: str
) -> None:
    # TRL pads the shorter response with the very token that ends both.
    pair = EncodedPair("a", PAIRS[0].prompt_ids, (1, 2, 256), (*range(20, 40), 256))
    settings = with_settings(engine=engine)
    expected = sequence_logps(base, spec, root, [pair], settings)
    assert base.tokenizer.pad_token_id != 256
    padded = replace(base, tokenizer=byte_tokenizer(pad_token="<|im_end|>"))
    assert padded.tokenizer.pad_token_id == padded.tokenizer.eos_token_id
    assert sequence_logps(padded, spec, root, [pair], settings) == expected


def test_a_pair_alone_and_beside_a_much_longer_one(base: Any, spec: Any, root: Any) -> None:
    # Padding inside a pair: the short response beside one three times as long, and the reverse.
    short = EncodedPair("short", PAIRS[0].prompt_ids, (1, 2, 3, 256), (4, 256))
    long = replace(short, rejected_ids=(*range(20, 60), 256))
    alone = sequence_logps(base, spec, root, [short], SETTINGS)["short"][0]
    beside = sequence_logps(base, spec, root, [long, *PAIRS], SETTINGS)["short"][0]
    assert beside == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("accumulation", [1, 2, 3, 100])
def test_larger_groups_give_each_pair_its_own_numbers(
    base: Any, spec: Any, root: Any, accumulation: int
) -> None:
    short = EncodedPair("short", PAIRS[0].prompt_ids[:2], (1, 2, 256), (4, 256))
    long = replace(short, pair_id="long", rejected_ids=(*range(20, 60), 256))
    pairs = [long, *PAIRS, short]
    alone = sequence_logps(base, spec, root, pairs, with_settings(engine="trl"))
    together = sequence_logps(base, spec, root, pairs, with_settings(accumulation=accumulation))
    assert together.keys() == alone.keys()
    for pair_id, logps in together.items():
        assert logps == pytest.approx(alone[pair_id], abs=1e-4)


def test_stored_exactly_and_never_computed_twice(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    first = reference_logps(base, spec, root, PAIRS, SETTINGS, tmp_path)
    assert len(forwards) == 4
    assert reference_logps(base, spec, root, PAIRS, SETTINGS, tmp_path) == first  # exact floats
    assert len(forwards) == 4
    assert first == sequence_logps(base, spec, root, PAIRS, SETTINGS)
    assert len(list(tmp_path.iterdir())) == 1


def test_adding_a_pair_computes_only_its_group(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    settings = with_settings(accumulation=2)
    first = reference_logps(base, spec, root, PAIRS[:3], settings, tmp_path)
    forwards.clear()
    both = reference_logps(base, spec, root, PAIRS, settings, tmp_path)
    assert forwards == ["pair-2", "pair-3"]
    assert [both[key] for key in ("pair-0", "pair-1")] == [
        first[key] for key in ("pair-0", "pair-1")
    ]
    # Its numbers are those of a computation of all at once.
    assert both == reference_logps(base, spec, root, PAIRS, settings, tmp_path / "fresh")


def test_on_trl_s_engine_a_pair_keeps_no_company(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    settings = with_settings(engine="trl")
    reference_logps(base, spec, root, PAIRS[:3], settings, tmp_path)
    forwards.clear()
    reference_logps(base, spec, root, PAIRS, settings, tmp_path)
    assert forwards == ["pair-3"]


def test_content_is_the_key_not_the_name(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    settings = with_settings(accumulation=1)
    reference_logps(base, spec, root, PAIRS, settings, tmp_path)
    forwards.clear()
    changed = replace(PAIRS[0], rejected_ids=(9, 8, 256))
    renamed = replace(PAIRS[1], pair_id="renamed")
    reference_logps(base, spec, root, [changed, renamed], settings, tmp_path)
    assert forwards == ["pair-0"]


def test_pairs_of_the_same_tokens_all_have_their_numbers(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    settings = with_settings(accumulation=1)
    twin = replace(PAIRS[0], pair_id="twin")
    found = reference_logps(base, spec, root, [PAIRS[0], twin], settings, tmp_path)
    assert found.keys() == {"pair-0", "twin"}
    assert found["twin"] == found["pair-0"]
    assert len(forwards) == 1


@pytest.mark.parametrize(
    "what", ["root", "scale", "weights", "tokenizer", "dtype", "device", "engine", "method"]
)
def test_whatever_the_numbers_depend_on_is_in_the_key(
    base: Any,
    spec: Any,
    root: Any,
    forwards: list[str],
    tmp_path: Path,
    what: str,
    monkeypatch: Any,
) -> None:
    settings = SETTINGS
    reference_logps(base, spec, root, PAIRS[:1], settings, tmp_path)
    forwards.clear()
    if what == "root":
        root = {key: np.nextafter(array, np.float32(9)) for key, array in root.items()}
    elif what == "scale":
        spec = replace(spec, alpha=spec.alpha * 2)
    elif what == "dtype":
        base = replace(base, dtype="bfloat16")
    elif what == "device":
        monkeypatch.setattr(BaseModel, "device_type", "cuda")
    elif what == "method":
        monkeypatch.setattr(reference, "METHOD_VERSION", reference.METHOD_VERSION + 1)
    elif what == "engine":
        settings = with_settings(engine="trl")
    else:
        base = replace(base, **{f"{what}_digest": "other"})
    reference_logps(base, spec, root, PAIRS[:1], settings, tmp_path)
    assert forwards == ["pair-0"]


def test_no_pairs_cost_nothing(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    assert reference_logps(base, spec, root, [], SETTINGS, tmp_path) == {}
    assert not forwards
    assert not list(tmp_path.iterdir())


def test_a_damaged_store_is_named(base: Any, spec: Any, root: Any, tmp_path: Path) -> None:
    reference_logps(base, spec, root, PAIRS[:1], SETTINGS, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text('{"pair": "x"}\n')
    with pytest.raises(DataError, match="delete the file"):
        reference_logps(base, spec, root, PAIRS[:1], SETTINGS, tmp_path)


def test_nothing_is_stored_that_is_no_number(
    base: Any, spec: Any, root: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reference, "_compute", lambda *_: [[(float("nan"), 0.0)]])
    with pytest.raises(TrainingError, match="no number"):
        reference_logps(base, spec, root, PAIRS[:1], SETTINGS, tmp_path)
    assert not list(tmp_path.iterdir())
