"""Strategies, over one partition and over several: tables, figures, page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from fedpref.errors import DataError, RoundError
from fedpref.experiment.partitions import partitions_record
from fedpref.report import figures, write_report
from fedpref.report.comparison import comparison_tables, findings
from fedpref.report.partitions import load_partitions, partitions_tables, ranking_sentences
from fedpref.report.result import Comparison

Value = dict[str, Any]

LONG = "feddraw(eta=2.5,similarity=factors)"
NAMES = {"fedpref": "pair-fedavg", "central": LONG, "local": "ffa"}


def strategies(value: Value) -> Value:
    """The paper's comparison with other names for its arms, as compare writes strategies."""
    text = json.dumps(value)
    for arm, name in NAMES.items():
        text = text.replace(f'"{arm}"', json.dumps(name))
    found: Value = json.loads(text)
    found["arms"] = {name: found["arms"][name] for name in NAMES.values()}
    del found["weights"]
    for name, arm in found["arms"].items():
        same = name != "ffa"
        arm["strategy"] = {"strategy": name.split("(")[0], "options": "", "same_roots": same}
        arm["weights"] = value["weights"]
        for round_ in arm["rounds"]:
            round_["site_spread"] = 0.0125
            for seed in round_["by_seed"]:
                seed["site_spread"] = 0.0125
    return found


@pytest.fixture
def of_strategies(comparison: Value) -> Value:
    return strategies(comparison)


def parsed(value: Value) -> Comparison:
    return Comparison.model_validate_json(json.dumps(value))


def test_strategies_stand_in_the_order_they_were_named(of_strategies: Value) -> None:
    result = parsed(of_strategies)
    assert result.arm_names == tuple(NAMES.values())
    table = comparison_tables(result)["headline"]
    assert table.title == "Strategies after the last round, 3"
    # 8,380.22 MB: 2 × 4,190,109,696 bytes a seed.
    assert table.cells[0] == [
        "pair-fedavg", "69.11 ± 0.17", "68.12 ± 0.22", "1.25 ± 0.00", "91.49 ± 0.27", "8,380.22",
        "the same",
    ]  # fmt: skip
    assert [row[-1] for row in table.cells] == ["the same", "the same", "others"]
    assert any("divided by their number" in note for note in table.notes)
    assert any("one partition" in note for note in table.notes)
    assert findings(result)[0].startswith("On the client mean, pair-fedavg is 2.49 points above")


def test_every_table_has_all_strategies(of_strategies: Value) -> None:
    found = comparison_tables(parsed(of_strategies))
    for name in ("headline", "measures", "costs", "trajectories", "runs", "sites"):
        text = found[name].to_markdown().replace("\\", "")
        assert LONG in text, name
        assert "pair-fedavg" in text, name


def test_figures_of_many_strategies_tell_them_apart(of_strategies: Value) -> None:
    count = 8
    arms = of_strategies["arms"]
    for number in range(3, count):
        arms[f"other-{number}"] = arms["ffa"]
    of_strategies["trajectory_intervals"] = {}
    result = parsed(of_strategies)
    styles = figures.arm_styles(result.arm_names)
    assert len({(s.colour, s.marker, s.line) for s in styles.values()}) == count
    # Without colour as well.
    assert len({(s.marker, s.line) for s in styles.values()}) == count
    picture = figures.trajectories(result)
    for name in result.arm_names:
        assert name in picture.panels[0]


@pytest.mark.parametrize("number", range(7))
def test_colours_of_strategies_are_readable_on_white(number: int) -> None:
    """WCAG 2's contrast ratio for text, at least 4.5."""
    colour = figures.numbered_style(number).colour
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_an_arm_that_is_not_there_is_refused(of_strategies: Value) -> None:
    of_strategies["effects"][0]["a"] = "svd"
    with pytest.raises(ValueError, match="there is no arm svd"):
        parsed(of_strategies)


@pytest.fixture
def made(tmp_path: Path, comparison: Value) -> Callable[[int], Path]:
    """Write a comparison over so many partitions; in each the same order of the strategies."""

    def make(count: int) -> Path:
        folder = tmp_path / f"study-{count}"
        found: dict[str, Value] = {}
        for number in range(1, count + 1):
            value = strategies(comparison)
            value["notes"] = ["ffa has roots of its own"]
            value["config"]["sites"] = f"/data/division-{number}"
            name = f"partition-{number}"
            (folder / name).mkdir(parents=True)
            (folder / name / "comparison.json").write_text(json.dumps(value))
            found[name] = value
        record = partitions_record(folder.name, found)
        (folder / "partitions.json").write_text(json.dumps(record))
        return folder

    return make


def test_five_partitions_that_agree(made: Callable[[int], Path]) -> None:
    loaded = load_partitions(made(5))
    assert loaded is not None
    found, _ = loaded
    tables = partitions_tables(*loaded)
    # Client mean: 71.77 before 69.11 before 66.62 everywhere.
    assert [row[:2] for row in tables["headline"].cells] == [
        ["pair-fedavg", "2.00"],
        [LONG, "1.00"],
        ["ffa", "3.00"],
    ]
    # Always the same ranks: 12/(5·3·4)·(25 + 100 + 225) − 3·5·4 = 10; exp(−10/2) = 0.0067.
    assert tables["tests"].cells[0][:5] == ["Client mean", "5", "10.00", "2", "0.0067"]
    first = tables["ranks-client-mean"]
    assert first.cells[0] == ["partition-1", "69.11 (2)", "71.77 (1)", "66.62 (3)"]
    assert first.to_csv().splitlines()[1] == "partition-1,69.11,2,71.77,1,66.62,3"
    said = ranking_sentences(found.rankings["client_mean"], "client mean")
    assert said[0].endswith(f"5 partitions is 1.00 of 3: {LONG}.")
    # 2 ranks apart, the critical difference is 1.48.
    assert f"these differ: {LONG} and ffa" in said[1].replace("ffa and " + LONG, f"{LONG} and ffa")
    assert len(tables["effects"].rows) == 10


def test_too_few_partitions_are_said_to_be(made: Callable[[int], Path]) -> None:
    loaded = load_partitions(made(2))
    assert loaded is not None
    said = " ".join(ranking_sentences(loaded[0].rankings["client_mean"], "client mean"))
    # exp(−4/2) = 0.1353.
    assert "(p 0.1353; so few partitions could not give less than 0.1353)" in said
    assert "none between two arms is claimed" in said
    notes = partitions_tables(*loaded)["tests"].to_markdown()
    assert "2 partitions are too few: even if all of them ranked the 3 arms alike" in notes
    assert "0.1353" in notes


def test_the_report_over_partitions(made: Callable[[int], Path]) -> None:
    folder = made(3)
    names = {path.name for path in write_report(folder)}
    assert {
        "report.html",
        "headline.csv",
        "tests.md",
        "average-ranks.svg",
        "by-partition.png",
    } <= names
    page = (folder / "report" / "report.html").read_text()
    assert page.count("<li>ffa has roots of its own.</li>") == 1
    for text in (LONG, "partition-3", "/data/division-2", "Synthetic data", "Average ranks"):
        assert text in page
    assert "<script" not in page


def test_one_partition_with_other_arms_is_refused(
    made: Callable[[int], Path], comparison: Value
) -> None:
    folder = made(2)
    (folder / "partition-2" / "comparison.json").write_text(json.dumps(comparison))
    with pytest.raises(RoundError, match="partition-2 has other arms"):
        load_partitions(folder)
    (folder / "partitions.json").write_text("{")
    with pytest.raises(DataError):
        load_partitions(folder)
