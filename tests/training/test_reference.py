from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_pairs

from fedpref.errors import DataError, TrainingError
from fedpref.training import reference
from fedpref.training.encoding import EncodedPair
from fedpref.training.reference import reference_logps, sequence_logps
from fedpref.training.session import adapter_session

PAIRS = make_pairs(4)


@pytest.fixture
def forwards(monkeypatch: Any) -> list[str]:
    """The ids of the pairs that cost a forward."""
    seen: list[str] = []
    original = reference._forward

    def spy(model: Any, collate: Any, pairs: Sequence[EncodedPair], device: str) -> Any:
        seen.extend(pair.pair_id for pair in pairs)
        return original(model, collate, pairs, device)

    monkeypatch.setattr(reference, "_forward", spy)
    return seen


def test_logps_are_sums_over_the_response_tokens(base: Any, spec: Any, root: Any) -> None:
    logps = sequence_logps(base, spec, root, PAIRS)
    with adapter_session(base, spec, root) as model, torch.no_grad():
        for pair in PAIRS:
            for ids, found in zip(
                (pair.chosen_ids, pair.rejected_ids), logps[pair.pair_id], strict=True
            ):
                logits = model(torch.tensor([[*pair.prompt_ids, *ids]])).logits[0]
                rows = torch.log_softmax(logits[len(pair.prompt_ids) - 1 : -1], -1)
                expected = rows.gather(1, torch.tensor(ids)[:, None]).sum().item()
                assert found == pytest.approx(expected, abs=1e-4)


def test_a_pair_alone_and_beside_a_much_longer_one(base: Any, spec: Any, root: Any) -> None:
    # Padding inside a pair: the short response beside one three times as long, and the reverse.
    short = EncodedPair("short", PAIRS[0].prompt_ids, (1, 2, 3, 256), (4, 256))
    long = replace(short, rejected_ids=(*range(20, 60), 256))
    alone = sequence_logps(base, spec, root, [short])["short"][0]
    beside = sequence_logps(base, spec, root, [long, *PAIRS])["short"][0]
    assert beside == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("batch_size", [2, 3, 100])
def test_larger_batches_give_each_pair_its_own_numbers(
    base: Any, spec: Any, root: Any, batch_size: int
) -> None:
    short = EncodedPair("short", PAIRS[0].prompt_ids[:2], (1, 2, 256), (4, 256))
    long = replace(short, pair_id="long", rejected_ids=(*range(20, 60), 256))
    pairs = [long, *PAIRS, short]
    alone = sequence_logps(base, spec, root, pairs)
    together = sequence_logps(base, spec, root, pairs, batch_size=batch_size)
    assert together.keys() == alone.keys()
    for pair_id, logps in together.items():
        assert logps == pytest.approx(alone[pair_id], abs=1e-4)


def test_stored_exactly_and_never_computed_twice(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    first = reference_logps(base, spec, root, PAIRS, tmp_path)
    assert len(forwards) == 4
    assert reference_logps(base, spec, root, PAIRS, tmp_path) == first  # exact floats
    assert len(forwards) == 4
    assert first == sequence_logps(base, spec, root, PAIRS)
    assert len(list(tmp_path.iterdir())) == 1


def test_adding_a_pair_computes_only_that_one(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    first = reference_logps(base, spec, root, PAIRS[:3], tmp_path)
    forwards.clear()
    both = reference_logps(base, spec, root, PAIRS, tmp_path)
    assert forwards == ["pair-3"]
    assert {key: both[key] for key in first} == first
    # Its numbers are those of a computation of all at once: they do not depend on company.
    assert both == reference_logps(base, spec, root, PAIRS, tmp_path / "fresh")


def test_content_is_the_key_not_the_name(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    reference_logps(base, spec, root, PAIRS, tmp_path)
    forwards.clear()
    changed = replace(PAIRS[0], rejected_ids=(9, 8, 256))
    renamed = replace(PAIRS[1], pair_id="renamed")
    reference_logps(base, spec, root, [changed, renamed], tmp_path)
    assert forwards == ["pair-0"]


@pytest.mark.parametrize("what", ["root", "scale", "weights", "tokenizer", "dtype"])
def test_whatever_the_numbers_depend_on_is_in_the_key(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path, what: str
) -> None:
    reference_logps(base, spec, root, PAIRS[:1], tmp_path)
    forwards.clear()
    if what == "root":
        root = {key: np.nextafter(array, np.float32(9)) for key, array in root.items()}
    elif what == "scale":
        spec = replace(spec, alpha=spec.alpha * 2)
    elif what == "dtype":
        base = replace(base, dtype="bfloat16")
    else:
        base = replace(base, **{f"{what}_digest": "other"})
    reference_logps(base, spec, root, PAIRS[:1], tmp_path)
    assert forwards == ["pair-0"]


def test_no_pairs_cost_nothing(
    base: Any, spec: Any, root: Any, forwards: list[str], tmp_path: Path
) -> None:
    assert reference_logps(base, spec, root, [], tmp_path) == {}
    assert not forwards
    assert not list(tmp_path.iterdir())


def test_a_damaged_store_is_named(base: Any, spec: Any, root: Any, tmp_path: Path) -> None:
    reference_logps(base, spec, root, PAIRS[:1], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text('{"pair": "x"}\n')
    with pytest.raises(DataError, match="delete the file"):
        reference_logps(base, spec, root, PAIRS[:1], tmp_path)


def test_nothing_is_stored_that_is_no_number(
    base: Any, spec: Any, root: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reference, "_forward", lambda *_: [(float("nan"), 0.0)])
    with pytest.raises(TrainingError, match="no number"):
        reference_logps(base, spec, root, PAIRS[:1], tmp_path)
    assert not list(tmp_path.iterdir())
