"""benchmarks/training.py: its arithmetic by hand, and its parts on a tiny random model."""

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def training(benchmark_module: Any) -> Any:
    return benchmark_module("training")


def lap(training: Any, seconds: float, reference: float = 0.0, losses: Any = (1.0,)) -> Any:
    return training.Lap(seconds, reference, list(losses), 0.0)


def test_the_ways_take_turns_and_a_warm_up_does_not_count(
    training: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    seconds = iter([9.0, 8.0, 1.0, 4.0, 3.0, 5.0])

    def run(way: str) -> Any:
        order.append(way)
        return lap(training, next(seconds))

    laps = training.take_turns(["a", "b"], 2, run, warm_up=True)
    assert order == ["a", "b"] * 3
    row = training.row_of("a", 6, laps["a"], warm_up=True)
    assert row.laps == [1.0, 3.0]
    assert (row.seconds, row.rate, row.warm_up) == (2.0, 3.0, 9.0)
    assert "warm-up" in capsys.readouterr().out


def test_a_row_is_the_median_of_its_laps(training: Any) -> None:
    laps = [lap(training, s, r) for s, r in ((4.0, 2.0), (1.0, 3.0), (2.0, 9.0))]
    row = training.row_of("a", 8, laps, warm_up=False)
    assert (row.seconds, row.reference, row.rate, row.warm_up) == (2.0, 3.0, 4.0, None)


def test_the_deviation_is_the_largest_relative_one(training: Any) -> None:
    assert training.deviation([1.0, 2.1], [1.0, 2.0]) == pytest.approx(0.05)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        training.deviation([1.0], [1.0, 2.0])


def test_the_losses_of_each_way_can_be_seen(training: Any) -> None:
    rows = [
        training.Row("DPO, TRL", 8, 16.0, losses=[0.693147, 0.5, 0.4]),
        training.Row("DPO, FedPref", 8, 4.0, losses=[0.693147, 0.500001, 0.4]),
    ]
    _, *lines = training.losses_text(rows).splitlines()
    assert lines[0].split() == ["DPO,", "TRL", "0.693147", "0.400000"]
    assert lines[1].split() == ["DPO,", "FedPref", "0.693147", "0.400000", "2.0e-06"]
    assert training.deviations(rows) == {"DPO, FedPref": pytest.approx(2e-6)}


def test_the_largest_group_has_the_most_tokens(training: Any) -> None:
    pair = training.EncodedPair
    pairs = [pair(str(i), (0,) * size, (1,), (1,)) for i, size in enumerate((9, 1, 6, 6, 11))]
    assert [p.pair_id for p in training.largest_group(pairs, 2)] == ["2", "3"]


def test_a_table_compares_with_its_first_row_in_80_columns(training: Any) -> None:
    rows = [
        training.Row("DPO, TRL", 8, 16.0, peak_mib=1000.0, losses=[0.7]),
        training.Row("DPO, TRL precomputed", 8, 8.0, reference=2.5, peak_mib=1100.0),
        training.Row("DPO, FedPref", 8, 4.0, reference=1.0, peak_mib=900.0),
    ]
    head, *lines = training.table("DPO", rows, "pairs/s").splitlines()
    assert head.split() == ["DPO", "pairs/s", "ratio", "once,", "s", "peak", "MiB", "ratio"]
    assert lines[0].split()[2:] == ["0.500", "1.00", "1,000", "1.00"]
    assert lines[1].split()[3:] == ["1.000", "2.00", "2.5", "1,100", "1.10"]
    assert lines[2].split()[2:] == ["2.000", "4.00", "1.0", "900", "0.90"]
    assert max(map(len, [head, *lines])) <= 80


def test_answers_are_compared_token_by_token(training: Any, benchmark_module: Any) -> None:
    first_difference = benchmark_module("one_by_one").first_difference
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert first_difference((1, 2, 3), (1, 2)) == 2
    # FedPref ends an answer whose object has closed before the model does.
    assert first_difference((1, 2, 3), (1, 2), decided=True) is None
    assert first_difference((1, 2), (1, 2, 3), decided=True) == 2
    found = [{"report": 4, "token": 1, "gap": 0.5}, {"report": 6, "token": 0, "gap": 1e-4}]
    text = training.agreement_text(
        {
            "reports": 8,
            "equal": 6,
            "ended_before_the_model": 2,
            "mean_tokens": {"a": 3.0},
            "differences": found,
        }
    )
    assert "6 of 8" in text
    assert "report 4, token 1, gap 0.5000" in text
    assert "report 6" not in text


def test_what_is_written_down_names_no_folder(training: Any) -> None:
    words = ["--sites", "/home/me/sites", "--model", "/home/me/small", "--out", "/home/me/x.json"]
    assert "/home" not in json.dumps(training.settings_of(training.parse(words)))


def test_an_unknown_part_is_refused(training: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert training.parse(["--parts", "dpo,logps"]).parts == ["dpo", "logps"]
    with pytest.raises(SystemExit):
        training.parse(["--parts", "sft,dop"])
    assert "no parts: dop" in capsys.readouterr().err


@pytest.fixture(scope="module")
def work(training: Any, benchmark_module: Any) -> Any:
    """A random model of a tiny shape, and three pairs that begin alike."""
    base = benchmark_module("random_models").random_base(
        "qwen3-smoke", dtype="bfloat16", device="cpu"
    )
    spec = training.make_spec(base, training.LoraSettings())
    common = tuple(range(10, 40))
    pairs = [
        training.EncodedPair(str(i), (*common, 50 + i), (60, 61 + i, 7), (60, 70 + i))
        for i in range(3)
    ]
    settings = training.TrainingSettings(sft_learning_rate=1e-3, dpo_learning_rate=1e-3)
    prompts = [list(pair.prompt_ids) for pair in pairs]
    return training.Work(base, spec, pairs, prompts, settings, batch_size=2, max_new_tokens=3)


def test_float32_trees_are_as_good_as_float64(
    training: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = training.train_sft(
        work.base, work.spec, training.initial_state(work.spec, 1), work.pairs, work.settings
    ).state
    measure = training.tree_deviation
    arguments = (work.base, work.spec, state, work.pairs, work.settings)
    assert 0 < measure(*arguments) < 1e-6
    assert work.base.dtype == "bfloat16"
    assert {p.dtype for p in work.base.model.parameters()} == {training.torch.bfloat16}

    # A rejected response that is off by 1e-4 is seen; it is the largest deviation that counts.
    module = sys.modules[measure.__module__]
    trees = module.sequence_logps

    def off(factor: float, *given: Any) -> Any:
        found = trees(*given)
        chosen, rejected = found["1"]
        return found | {"1": (chosen, rejected * factor)}

    monkeypatch.setattr(module, "sequence_logps", partial(off, 1 + 1e-4))
    assert measure(*arguments) == pytest.approx(1e-4, rel=1e-2)
    monkeypatch.setattr(module, "sequence_logps", partial(off, math.nan))
    assert math.isnan(measure(*arguments))
    assert "furthest from float64 by 1.0e-04, NOT within 1e-05" in training.logps_text(3, 1e-4)


def test_few_reports_are_answered_one_by_one_once(
    training: Any, work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--one-by-one", "1", "--repeats", "2", "--no-memory"]
    state = training.initial_state(work.spec, 1)
    rows, agreement = training.measure_generation(work, state, training.parse(words))
    assert [(row.way, row.things, len(row.laps)) for row in rows] == [
        ("one by one", 1, 1),
        ("FedPref", 3, 2),
    ]
    assert agreement["reports"] == 1
    assert agreement["mean_tokens"]["one by one"] <= 3
    assert capsys.readouterr().out.count("one by one") == 1


def test_a_row_has_the_peak_of_a_process_of_its_own(
    training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def peak_of(way: str, *_: Any) -> tuple[float, float]:
        asked.append(way)
        return 9.0, 4.0

    monkeypatch.setattr(training, "peak_of", peak_of)
    row, laps = training.Row("FedPref", 8, 4.0), [lap(training, 4.0)]
    found = training.with_peak(row, laps, {}, training.parse([]), "cpu")
    assert (found.peak_mib, found.held_mib) == (9.0, 4.0)
    assert training.with_peak(row, laps, {}, training.parse(["--no-memory"]), "cpu") == row
    assert training.with_peak(row, laps, {}, training.parse([]), "cuda").peak_mib == 0.0
    assert asked == ["FedPref"]


def test_each_part_is_printed_and_written_as_it_ends(
    training: Any,
    work: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [training.Row(way, 3, 2.0, losses=[0.7, 0.6]) for way in training.DPO]
    monkeypatch.setattr(training, "prepare", lambda _: work)
    monkeypatch.setattr(training, "measure_training", lambda *_: rows)
    monkeypatch.setattr(training, "measure_generation", lambda *_: pytest.fail("the limit"))
    out = tmp_path / "out.json"
    with pytest.raises(pytest.fail.Exception, match="the limit"):
        training.main(["--parts", "dpo,generation", "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["dpo"]["deviation"] == {"DPO, TRL precomputed": 0.0, "DPO, FedPref": 0.0}
    assert "generation" not in found
    printed = capsys.readouterr().out
    assert training.table("DPO", rows, "pairs/s") in printed
    assert training.losses_text(rows) in printed
    assert found["dpo"]["note"] == training.losses_text(rows).splitlines()


@pytest.mark.parametrize(("largest", "status"), [(9e-6, 0), (2e-5, 1), (math.nan, 1)])
def test_wrong_log_probs_are_a_failure(
    training: Any, work: Any, monkeypatch: pytest.MonkeyPatch, largest: float, status: int
) -> None:
    monkeypatch.setattr(training, "prepare", lambda _: work)
    monkeypatch.setattr(training, "tree_deviation", lambda *_: largest)
    assert training.main(["--parts", "logps"]) == status
