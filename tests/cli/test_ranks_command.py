"""`fedpref ranks`, over comparisons as `fedpref compare` writes them, with arms of any names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from fedpref.cli.ranks import ranks
from fedpref.errors import DataError, RoundError

app = typer.Typer()
app.command()(ranks)

# Client means at the selected round; FedDRAW is always first, uniform last but once.
SCORES = [
    {"feddraw": 0.71, "pair-fedavg": 0.70, "uniform": 0.66},
    {"feddraw": 0.64, "pair-fedavg": 0.61, "uniform": 0.60},
    {"feddraw": 0.55, "pair-fedavg": 0.50, "uniform": 0.50},
    {"feddraw": 0.80, "pair-fedavg": 0.79, "uniform": 0.70},
    {"feddraw": 0.61, "pair-fedavg": 0.58, "uniform": 0.59},
]


def call(*arguments: object, raises: type[Exception] | None = None) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if raises is None:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, raises), result.output
    return result


def scores(client_mean: float | None, worst_site: float | None) -> dict[str, Any]:
    rest = ("disease_client_mean", "disease_pooled", "projection_rate", "strict_rate")
    rest += ("truncation_rate", "false_positive_rate", "preference_accuracy")
    f1 = {"client_mean": client_mean, "worst_site": worst_site, "pooled": client_mean}
    return {**f1, **dict.fromkeys(rest, 0.5), "sites": {}}


def write(folder: Path, given: Mapping[str, float | None], sites: str = "", **changes: Any) -> Path:
    """A comparison of two rounds, the second selected; the first must not be read."""
    nothing = scores(0.0, 0.0)
    seeds = changes.get("seeds", [1, 2])
    value = {
        "kind": "comparison",
        "complete": True,
        "run": folder.name,
        "synthetic": True,
        "digest": "d" * 64,
        "config": {"sites": sites or f"sites/{folder.name}", "rounds": 1},
        "seeds": seeds,
        "rounds": 1,
        "selected_round": 1,
        "sites": {},
        "effects": [],
        "arms": {
            arm: {
                "rounds": [
                    row | {"by_seed": [row] * len(seeds)}
                    for row in (nothing, scores(score, None if score is None else 1 - score))
                ],
                "exposure": {"pairs": 1, "sft": 1, "dpo": 1},
                "bytes": {"down": 1, "up": 1},
                "seconds": 1.0,
            }
            for arm, score in given.items()
        },
        **changes,
    }
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def audit(rows: int) -> dict[str, Any]:
    cohort = {
        "cohort": "train_reports", "rows": rows, "sizes": {"site-1": rows}, "overall": [0.5],
        "prevalence": {"site-1": [0.5]}, "divergence": 0.1, "divergence_labels": 1,
        "null_95": None, "ratio": None, "p_value": None,
    }  # fmt: skip
    told = {"mode": "simulation", "labels": ["normal"], "sites": ["site-1"], "permutations": 9}
    return told | {"cohorts": [cohort]}


def five(tmp_path: Path, scores: Sequence[Mapping[str, float | None]] = SCORES) -> list[Path]:
    return [write(tmp_path / f"p{number}", row) for number, row in enumerate(scores)]


def test_ranks_of_five_partitions(tmp_path: Path) -> None:
    shown = json.loads(call(*five(tmp_path), "--json").stdout)
    assert shown["arms"] == ["feddraw", "pair-fedavg", "uniform"]
    assert shown["seeds"] == [1, 2]
    assert [list(row["ranks"].values()) for row in shown["partitions"]] == [
        [1, 2, 3],
        [1, 2, 3],
        [1, 2.5, 2.5],
        [1, 2, 3],
        [1, 3, 2],
    ]
    # Rank sums 5, 11.5, 13.5.
    assert shown["average_ranks"] == pytest.approx(
        {"feddraw": 1.0, "pair-fedavg": 2.3, "uniform": 2.7}
    )
    # 12/(5·3·4)·(25 + 132.25 + 182.25) − 3·5·4 = 7.9, over 1 − 6/(5·3·8) for one tie of two.
    assert shown["friedman"]["statistic"] == pytest.approx(7.9 / 0.95)
    assert shown["friedman"]["degrees"] == 2
    # 2.343·sqrt(3·4/(6·5))
    assert shown["nemenyi"]["critical_difference"] == pytest.approx(1.482, abs=1e-3)
    pairs = {(pair["a"], pair["b"]): pair for pair in shown["nemenyi"]["pairs"]}
    assert len(pairs) == 3
    assert pairs["feddraw", "uniform"]["difference"] == pytest.approx(-1.7)
    assert (
        pairs["feddraw", "uniform"]["p_value"] < 0.05 < pairs["feddraw", "pair-fedavg"]["p_value"]
    )
    assert shown["degenerate"] is None


def test_tables_say_the_same(tmp_path: Path) -> None:
    text = call(*five(tmp_path)).stdout
    assert "Synthetic" in text
    assert "71.00 (1)" in text
    assert "50.00 (2.5)" in text
    assert "Friedman (client mean): chi-square 8.32, 2 degrees of freedom, p 0.0156" in text
    assert "critical difference 1.48" in text
    assert "approximate" in text
    [line] = [line for line in text.splitlines() if "1.70" in line]
    assert line.index("feddraw") < line.index("uniform") < line.index("yes")


def test_the_score_can_be_chosen(tmp_path: Path) -> None:
    shown = json.loads(call(*five(tmp_path), "--score", "worst_site", "--json").stdout)
    assert shown["average_ranks"]["feddraw"] == 3  # worst sites are the other way round here
    pooled = json.loads(call(tmp_path / "p0", "--score", "pooled", "--json").stdout)
    assert pooled["partitions"][0]["scores"]["uniform"] == 0.66
    assert CliRunner().invoke(app, [str(tmp_path / "p0"), "--score", "best"]).exit_code == 2


def test_no_difference_is_claimed_unless_friedman_finds_one(tmp_path: Path) -> None:
    turns = [dict(zip("abc", (x, y, z), strict=True)) for x, y, z in ((3, 2, 1), (1, 2, 3))]
    folders = five(tmp_path, [{arm: v / 10 for arm, v in row.items()} for row in turns])
    text = call(*folders).stdout
    assert "none between two arms is claimed" in text
    assert "yes" not in text


def test_a_partition_without_a_score_is_left_out_and_named(tmp_path: Path) -> None:
    folders = [*five(tmp_path), write(tmp_path / "holed", {**SCORES[0], "uniform": None})]
    shown = json.loads(call(*folders, "--json").stdout)
    assert shown["ranked_partitions"] == 5
    assert shown["partitions"][-1]["ranks"] is None
    assert shown["partitions"][-1]["left_out"] == "an arm has no score"
    text = call(*folders).stdout
    assert f"left out: {tmp_path / 'holed'}" in text
    assert "no data" in text


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (SCORES[:1], "only one partition"),
        ([{"a": 0.1, "b": 0.2}, {"a": 0.2, "b": 0.1}], "three strategies"),
        ([{"a": 0.1, "b": 0.1, "c": 0.1}] * 2, "equal in every partition"),
        ([{"a": None, "b": 0.1, "c": 0.1}] * 2, "no partition to rank"),
    ],
)
def test_no_tests_but_a_reason(
    tmp_path: Path, rows: list[dict[str, float | None]], reason: str
) -> None:
    folders = five(tmp_path, rows)
    shown = json.loads(call(*folders, "--json").stdout)
    assert reason in shown["degenerate"]
    assert shown["friedman"] is None
    assert shown["nemenyi"] is None
    text = call(*folders).stdout
    assert f"no tests (client mean): {shown['degenerate']}" in text
    assert "nan" not in text.lower().replace("fedpref", "")


def test_other_arms_or_seeds_are_refused_naming_both(tmp_path: Path) -> None:
    one = write(tmp_path / "one", SCORES[0])
    arms = write(tmp_path / "arms", {"feddraw": 0.5, "local": 0.4})
    seeds = write(tmp_path / "seeds", SCORES[0], seeds=[1, 3])
    error = str(call(one, arms, raises=DataError).exception)
    assert f"{one} has the arms feddraw, pair-fedavg, uniform; {arms} has feddraw, local" in error
    error = str(call(one, seeds, raises=DataError).exception)
    assert f"{one} has the seeds 1, 2; {seeds} has 1, 3" in error


def test_the_order_of_arms_and_seeds_is_free(tmp_path: Path) -> None:
    one = write(tmp_path / "one", SCORES[0])
    two = write(tmp_path / "two", dict(reversed(SCORES[1].items())), seeds=[2, 1])
    shown = json.loads(call(one, two, "--json").stdout)
    assert shown["average_ranks"] == {"feddraw": 1, "pair-fedavg": 2, "uniform": 3}
    assert list(shown["partitions"][1]["scores"]) == shown["arms"]


def test_one_partition_twice_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one", SCORES[0], sites="here", audit=audit(10))
    for other in (
        one,
        write(tmp_path / "same-folder", SCORES[1], sites="here"),
        write(tmp_path / "copied", SCORES[1], sites="there", audit=audit(10)),
    ):
        error = str(call(one, other, raises=DataError).exception)
        assert str(one) in error
        assert str(other) in error
        assert "one and the same partition" in error
    # The same relative name in another project is another partition, and its audit says so.
    call(one, write(tmp_path / "other", SCORES[1], sites="here", audit=audit(11)))


def test_files_that_cannot_be_ranked(tmp_path: Path) -> None:
    assert "no comparison" in str(call(tmp_path / "none", raises=RoundError).exception)
    stopped = write(tmp_path / "stopped", SCORES[0], complete=False)
    assert "not complete" in str(call(stopped, raises=RoundError).exception)
    late = write(tmp_path / "late", SCORES[0], selected_round=2)
    assert "selected_round 2 is after the last, 1" in str(call(late, raises=DataError).exception)
    impossible = write(tmp_path / "impossible", {"a": 1.5})
    assert "arms.a.rounds.1.client_mean" in str(call(impossible, raises=DataError).exception)
    (impossible / "comparison.json").write_text("{")
    assert "the file" in str(call(impossible, raises=DataError).exception)
