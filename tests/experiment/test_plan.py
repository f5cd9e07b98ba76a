"""What an experiment runs, and that it stays one experiment."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedpref.config import RunConfig, load_config
from fedpref.data import SiteDirectory
from fedpref.errors import ConfigError, DataError, FedPrefError, FedPrefErrors, ResumeError
from fedpref.experiment import plan as plans
from fedpref.experiment.arms import Arm, matched_arms, strategy_arms
from fedpref.experiment.plan import experiment_id, model_identity, open_experiment
from fedpref.files import read_jsonl, write_jsonl
from fedpref.preference import pairs_digest, read_pairs


def name(config: RunConfig, seeds: Sequence[int] = (5,), arms: Sequence[Arm] | None = None) -> str:
    """The default folder's name."""
    return experiment_id(
        config,
        seeds,
        arms=matched_arms(config) if arms is None else arms,
        model=model_identity(config),
        folders=[Path(config.sites)],
    )


def test_the_arms_differ_in_what_makes_them_an_arm_and_in_nothing_else(
    tmp_path: Path, config: RunConfig
) -> None:
    experiment = open_experiment(tmp_path / "x", config, [5, 6]).begin()
    jobs = experiment.jobs()
    assert [(job.arm, job.seed, job.nodes) for job in jobs] == [
        ("fedpref", 5, 2), ("local", 5, 2), ("central", 5, 1),
        ("fedpref", 6, 2), ("local", 6, 2), ("central", 6, 1),
    ]  # fmt: skip
    assert len({job.run_dir for job in jobs}) == len(jobs)
    plain = config.to_flat() | {"seed": 5}
    changed = [
        {
            key: value
            for key, value in job.config.to_flat().items()
            if plain[key] != value and key not in ("runs-dir", "run-id")
        }
        for job in jobs[:3]
    ]
    assert changed == [
        {},
        {"strategy": "local"},
        {
            "sites": str(tmp_path / "x" / "central"),
            "training.accumulation": 8,  # 4 at each of two sites
            "min-sites": 0,
            "quorum": 0,
        },
    ]


def test_central_holds_the_very_pairs_of_the_sites_and_no_candidates(
    tmp_path: Path, config: RunConfig
) -> None:
    experiment = open_experiment(tmp_path / "x", config, [5]).begin()
    central = experiment.central
    own = {pair.pair_id: site.name for site in experiment.sites for pair in read_pairs(site)}
    assert own
    assert {pair.pair_id: pair.home_site for pair in read_pairs(central)} == own
    assert central.info.synthetic
    assert not central.candidates_dir.exists()
    assert [r.report_id for r in central.split("train")] == sorted(
        f"{name}-train-{n}" for name in ("north", "south") for n in (0, 1)
    )


def test_the_same_again_is_the_same_experiment(tmp_path: Path, config: RunConfig) -> None:
    first = open_experiment(tmp_path / "x", config, [5]).begin()
    before = (first.central_folder / "central" / "pairs.jsonl").stat().st_mtime_ns
    open_experiment(tmp_path / "x", config, [5]).begin()
    assert (first.central_folder / "central" / "pairs.jsonl").stat().st_mtime_ns == before
    assert name(config) == name(config)
    assert name(config) != name(config, seeds=[6])
    assert name(config) != name(config, arms=strategy_arms("uniform,feddraw", config))


def test_the_order_of_the_seeds_is_irrelevant(tmp_path: Path, config: RunConfig) -> None:
    first = open_experiment(tmp_path / "x", config, [7, 5]).begin()
    again = open_experiment(tmp_path / "x", config, [5, 7]).begin()
    assert [(job.arm, job.seed) for job in first.jobs()] == [
        (job.arm, job.seed) for job in again.jobs()
    ]


def test_a_fraction_of_the_sites_is_refused_before_any_run(
    tmp_path: Path, config: RunConfig
) -> None:
    part = config.model_copy(update={"fraction": 0.5})
    for arms in (None, strategy_arms("uniform,feddraw", part)):
        with pytest.raises(ConfigError, match=r"key fraction: 0\.5 was given\. .*same exposure"):
            open_experiment(tmp_path / "x", part, [5], arms=arms)


@pytest.mark.parametrize(
    ("change", "seeds", "named"),
    [
        ({"training.beta": 0.2}, [5], r"key config.training.beta: was 0.1 .*, is 0.2 now"),
        ({"rounds": 2}, [5], r"key config.rounds: was 3 .*, is 2 now"),
        ({}, [5, 6], r"key seeds: was \[5\] .*, is \[5, 6\] now"),
        ({}, [7], r"key seeds: was \[5\] .*, is \[7\] now"),
    ],
)
def test_a_changed_configuration_is_refused_with_both_values(
    tmp_path: Path, folder: Path, config: RunConfig, change: Any, seeds: list[int], named: str
) -> None:
    open_experiment(tmp_path / "x", config, [5]).begin()
    changed = load_config({"sites": str(folder), "quorum": 2, "min-sites": 2} | change)
    with pytest.raises(ResumeError, match=named):
        open_experiment(tmp_path / "x", changed, seeds).begin()


def test_a_quorum_above_the_number_of_sites_is_refused(tmp_path: Path, folder: Path) -> None:
    config = load_config({"sites": str(folder), "quorum": 9, "min-sites": 9})
    with pytest.raises(FedPrefErrors, match=r"quorum = 9 is larger .*\n.*min-sites = 9 is larger"):
        open_experiment(tmp_path / "x", config, [5])


def test_changed_pairs_are_refused_with_both_hashes(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    open_experiment(tmp_path / "x", config, [5]).begin()
    plan = tmp_path / "x" / "experiment.json"
    content = json.loads(plan.read_text())
    content["sites"]["south"]["pairs"] = "0" * 64
    plan.write_text(json.dumps(content))
    with pytest.raises(ResumeError, match=r"key sites.south.pairs: was 000000000000 .*, is "):
        open_experiment(tmp_path / "x", config, [5]).begin()


def test_a_union_of_other_pairs_is_refused_with_both_hashes(
    tmp_path: Path, config: RunConfig
) -> None:
    experiment = open_experiment(tmp_path / "x", config, [5]).begin()
    site = experiment.sites[0]
    rows = [row for _, row in read_jsonl(site.pairs_path)]
    assert len(rows) > 1
    pairs = read_pairs(SiteDirectory.load(site.path))
    # The site lost a pair after the plan was written; the plan is made to fit.
    rows[0] |= {"pairs": len(pairs) - 1, "digest": pairs_digest(pairs[1:])}
    write_jsonl(site.pairs_path, [rows[0], *rows[2:]])
    plan = tmp_path / "x" / "experiment.json"
    content = json.loads(plan.read_text())
    content["sites"][site.name]["pairs"] = pairs_digest(pairs[1:])
    plan.write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=r"different pairs: [0-9a-f]{12} at the sites, [0-9a-f]{12}"
    ):
        open_experiment(tmp_path / "x", config, [5]).begin()


@pytest.mark.parametrize("seeds", [[], [5, 5], [-1], [2**63]])
def test_seeds_are_given_once_each(tmp_path: Path, config: RunConfig, seeds: list[int]) -> None:
    with pytest.raises(ConfigError, match="seed"):
        open_experiment(tmp_path / "x", config, seeds).begin()
    assert not (tmp_path / "x").exists()


def test_another_base_model_is_another_experiment(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    settings = {"sites": str(folder), "model.path": str(model)}
    other = load_config(settings)
    assert name(other) != name(load_config({"sites": str(folder)}))
    open_experiment(tmp_path / "x", other, [5]).begin()
    (model / "config.json").write_text('{"changed": 1}')
    with pytest.raises(ResumeError, match=r"key model\.files: was "):
        open_experiment(tmp_path / "x", other, [5]).begin()


def test_sites_without_a_development_report_are_refused_at_once(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    for name in ("north", "south"):
        path = folder / name / "reports.jsonl"
        path.write_text(path.read_text().replace('"split":"dev"', '"split":"diagnostic"'))
    with pytest.raises(DataError, match="no site has a development report"):
        open_experiment(tmp_path / "x", config, [5]).begin()


def test_the_arm_local_is_no_strategy_to_compare(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="strategy"):
        open_experiment(
            tmp_path / "x", load_config({"sites": str(folder), "strategy": "local"}), [5]
        )


def test_every_unusable_site_is_named_before_anything_is_written(
    tmp_path: Path, folder: Path, config: RunConfig
) -> None:
    for name in ("north", "south"):
        (folder / name / "annotations.jsonl").write_text("{\n")
    with pytest.raises(FedPrefError) as caught:
        open_experiment(tmp_path / "x", config, [5]).begin()
    assert "north" in str(caught.value)
    assert "south" in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_strategies_differ_in_their_strategy_only_and_need_no_union(
    tmp_path: Path, config: RunConfig
) -> None:
    arms = strategy_arms("pair-fedavg,feddraw(eta=2,similarity=factors),local", config)
    experiment = open_experiment(tmp_path / "x", config, [5, 6], arms=arms).begin()
    jobs = experiment.jobs()
    assert [(job.arm, job.seed, job.nodes) for job in jobs[:3]] == [
        ("pair-fedavg", 5, 2), ("feddraw(eta=2,similarity=factors)", 5, 2), ("local", 5, 2),
    ]  # fmt: skip
    assert len({job.run_dir for job in jobs}) == 6
    told = [(job.config.strategy, job.config.strategy_options) for job in jobs[:3]]
    assert told == [
        ("pair-fedavg", ""), ("feddraw", 'eta = 2, similarity = "factors"'), ("local", ""),
    ]  # fmt: skip
    # Everything else is equal, the folders aside.
    own = {"strategy": "", "strategy_options": "", "run_id": ""}
    assert len({job.config.model_copy(update=own).digest for job in jobs[:3]}) == 1
    # What runs is a configuration that a run would take from a command line.
    assert [load_config(job.config.to_flat()).digest for job in jobs] == [
        job.config.digest for job in jobs
    ]
    assert not experiment.central_folder.exists()


def test_other_strategies_are_another_experiment(tmp_path: Path, config: RunConfig) -> None:
    open_experiment(
        tmp_path / "x", config, [5], arms=strategy_arms("uniform,local", config)
    ).begin()
    with pytest.raises(ResumeError, match=r"key strategies: was \['uniform\(\)', 'local\(\)'\]"):
        open_experiment(tmp_path / "x", config, [5], arms=strategy_arms("uniform,svd", config))
    with pytest.raises(ResumeError, match=r"key strategies: was .* is absent now"):
        open_experiment(tmp_path / "x", config, [5])


def test_strategies_that_need_more_sites_are_refused_all_at_once(
    tmp_path: Path, config: RunConfig
) -> None:
    config = load_config({"sites": config.sites})
    arms = strategy_arms("uniform,FedMedian,FedTrimmedAvg(beta=0.25)", config)
    with pytest.raises(FedPrefError) as caught:
        open_experiment(tmp_path / "x", config, [5], arms=arms)
    assert "FedMedian needs the updates of 3 sites in a round, 2 are sure" in str(caught.value)
    assert "FedTrimmedAvg needs the updates of 4 sites" in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_two_sites_of_one_name_are_refused(tmp_path: Path, folder: Path, config: RunConfig) -> None:
    path = folder / "south" / "site.toml"
    path.write_text(path.read_text().replace('name = "south"', 'name = "north"'))
    with pytest.raises(DataError, match="two sites have this name"):
        open_experiment(tmp_path / "x", config, [5])


def test_pairs_and_model_are_read_once(
    tmp_path: Path, folder: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()

    def counted(site: SiteDirectory) -> Any:
        read[site.name] += 1
        return read_pairs(site)

    monkeypatch.setattr(plans, "read_pairs", counted)
    monkeypatch.setattr("fedpref.preference.dataset.read_pairs", counted)
    model = plans.model_identity(config)

    def again(_: RunConfig) -> Any:
        raise AssertionError("the model is hashed again")

    monkeypatch.setattr(plans, "model_identity", again)
    open_experiment(tmp_path / "x", config, [5], arms=matched_arms(config), model=model).begin()
    assert read == {"north": 1, "south": 1, "central": 1}
