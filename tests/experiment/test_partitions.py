"""Several partitions are opened together; their scores become ranks and means."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedpref.config import RunConfig, load_config
from fedpref.errors import FedPrefError
from fedpref.experiment.arms import strategy_arms
from fedpref.experiment.partitions import open_partitions, partitions_record
from fedpref.experiment.plan import model_identity

Value = dict[str, Any]


def opened(tmp_path: Path, config: RunConfig, *folders: Path, strategies: str) -> list[Any]:
    configs = [config.model_copy(update={"sites": str(folder)}) for folder in folders]
    arms = strategy_arms(strategies, config)
    return open_partitions(tmp_path / "x", configs, [5], arms, model_identity(config))


def test_one_partition_is_in_the_folder_itself_several_are_in_it(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    path = other / "north" / "reports.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # The pairs come from other splits and stay what they are.
    changed = [x.replace("No effusion", "no effusion") if "test" in x else x for x in lines]
    assert changed != lines
    path.write_text("".join(changed))
    (alone,) = opened(tmp_path, config, folder, strategies="uniform,svd")
    assert alone.experiment.folder == tmp_path / "x"
    two = opened(tmp_path, config, folder, other, strategies="uniform,svd")
    assert [opening.experiment.folder.name for opening in two] == ["partition-1", "partition-2"]
    assert not (tmp_path / "x").exists()


def test_all_problems_of_all_partitions_are_said_at_once(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    copied, broken = tmp_path / "copied", tmp_path / "broken"
    shutil.copytree(folder, copied)
    shutil.copytree(folder, broken)
    (broken / "south" / "annotations.jsonl").write_text("{\n")
    with pytest.raises(FedPrefError) as caught:
        opened(tmp_path, config, folder, copied, broken, strategies="uniform,svd")
    said = str(caught.value)
    assert f"the sites are those of {folder}" in said
    assert "broken" in said
    assert not (tmp_path / "x").exists()
    with pytest.raises(FedPrefError, match="Krum needs the updates of 3 sites"):
        opened(tmp_path, load_config({"sites": str(folder)}), folder, strategies="uniform,Krum")


def comparison(**client_means: float | None) -> Value:
    return {
        "synthetic": True,
        "notes": ["said of every partition"],
        "seeds": [1, 2],
        "selected_round": 1,
        "config": {"sites": "here"},
        "arms": {
            arm: {
                "rounds": [
                    {"client_mean": 0.0, "worst_site": 0.0, "site_spread": 0.0},
                    {
                        "client_mean": score,
                        "worst_site": None if score is None else score / 2,
                        "site_spread": 0.1,
                    },
                ],
                "bytes": {"down": 30, "up": 10},
            }
            for arm, score in client_means.items()
        },
    }


def test_means_and_ranks_over_partitions() -> None:
    found = partitions_record(
        "r", {"p1": comparison(a=0.5, b=0.6, c=0.4), "p2": comparison(a=0.7, b=0.6, c=0.5)}
    )
    assert found["notes"] == ["said of every partition"]
    assert found["arms"]["a"] == {
        "client_mean": pytest.approx(0.6),
        "worst_site": pytest.approx(0.3),
        "site_spread": pytest.approx(0.1),
        "bytes": 20.0,  # 40 over two seeds
    }
    ranks = found["rankings"]["client_mean"]
    assert ranks["average_ranks"] == {"a": 1.5, "b": 1.5, "c": 3.0}
    # 12/(2·3·4)·(9 + 9 + 36) − 3·2·4 = 3; at most 4, and exp(−4/2) = 0.135.
    assert ranks["friedman"]["statistic"] == pytest.approx(3.0)
    assert ranks["friedman"]["least_p"] == pytest.approx(0.1353, abs=1e-4)


def test_a_partition_without_a_score_is_in_no_rank_and_no_mean() -> None:
    found = partitions_record(
        "r", {"p1": comparison(a=0.5, b=None, c=0.4), "p2": comparison(a=0.7, b=0.6, c=0.5)}
    )
    assert found["arms"]["b"]["client_mean"] is None
    assert found["arms"]["a"]["client_mean"] == pytest.approx(0.6)
    ranks = found["rankings"]["client_mean"]
    assert ranks["partitions"][0]["ranks"] is None
    assert "only one partition" in ranks["degenerate"]
