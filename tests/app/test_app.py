"""The real ServerApp and ClientApp in this process, with the bundled model on small sites."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_site import run_server
from flwr.app import Message
from local_grid import LocalGrid

from fedpref.adapter_state import initial_state, load_adapter, state_digest
from fedpref.config import load_config
from fedpref.data import SiteDirectory, write_site
from fedpref.errors import DataError, FedPrefError, HandshakeError, TrainingError
from fedpref.federation import site_work, wire
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.site_work import LocalSite
from fedpref.preference import build_pairs
from fedpref.training import reference, sft
from fedpref.training.adjustment import Adjustment
from fedpref_app.client_app import app as client_app

Config = dict[str, Any]


def settings(sites: Path, runs: Path, **values: Any) -> Config:
    base = {
        "sites": str(sites),
        "runs-dir": str(runs),
        "run-id": "r",
        "rounds": 2,
        "join-deadline": 30.0,
        "training.accumulation": 2,
        "evaluation.max-new-tokens": 24,
    }
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def run(config: Config, nodes: int = 2, **options: Any) -> LocalGrid:
    grid = LocalGrid(client_app, config, nodes, **options)
    run_server(grid, config)
    return grid


def files(run_dir: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(run_dir)): p.read_bytes()
        for p in sorted((run_dir / "adapters").rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def whole(
    copy_sites: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, LocalGrid]:
    """One uninterrupted run: its sites, its run directory and its grid with all messages."""
    folder = tmp_path_factory.mktemp("whole")
    sites = copy_sites(folder / "sites")
    grid = run(settings(sites, folder / "runs"))
    return sites, folder / "runs" / "r", grid


def test_the_run_is_complete_and_scored(whole: tuple[Path, Path, LocalGrid]) -> None:
    summary = json.loads((whole[1] / "summary.json").read_text())
    assert summary["complete"]
    assert summary["synthetic"]
    assert [row["round"] for row in summary["rounds"]] == [0, 1, 2]
    for row in summary["rounds"]:
        for site in row["sites"].values():
            assert site["counts"]["reports"] == 6
        assert row["refused"] == {"training": {}, "evaluation": {}}


def test_round_zero_is_the_pair_weighted_mean_of_sft_roots(
    whole: tuple[Path, Path, LocalGrid],
) -> None:
    config = load_config(settings(whole[0], whole[1].parent))
    works = [LocalSite(config, whole[0] / f"site-{k}") for k in (1, 2)]
    spec = works[0].spec
    start = initial_state(spec, config.seed)
    roots = [work.train(0, start, None) for work in works]
    assert all(roots)
    mean = weighted_mean([r.state for r in roots if r], [r.trained_pair_count for r in roots if r])
    assert state_digest(mean) == state_digest(load_adapter(whole[1] / "adapters/round-0", spec))


def test_every_adapter_differs_from_the_one_before(whole: tuple[Path, Path, LocalGrid]) -> None:
    rows = json.loads((whole[1] / "summary.json").read_text())["rounds"]
    assert len({row["adapter"] for row in rows}) == 3


def test_no_report_and_no_identity_is_in_any_message_log_or_run_file(
    whole: tuple[Path, Path, LocalGrid],
) -> None:
    sites, run_dir, grid = whole
    told = "".join(repr(message.content) for message in [*grid.sent, *grid.replies])
    told += "".join(
        path.read_bytes().decode("latin-1") for path in run_dir.rglob("*.json*") if path.is_file()
    )
    reports = [r for k in (1, 2) for r in SiteDirectory.load(sites / f"site-{k}").reports]
    assert len(reports) == 36
    for report in reports:
        for secret in (report.report_id, report.patient_id, report.text[:30]):
            assert f'"{secret}"' not in told
            assert f"'{secret}'" not in told
        assert report.text[:30] not in told


def test_replies_hold_what_the_documentation_lists(whole: tuple[Path, Path, LocalGrid]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md").read_text("utf-8")
    seen = set()
    for reply in whole[2].replies:
        for record in (
            *reply.content.config_records.values(),
            *reply.content.metric_records.values(),
        ):
            seen |= set(record)
    assert len(seen) > 30
    assert [name for name in sorted(seen) if f"`{name}`" not in text] == []


def test_an_update_weighs_what_the_adapter_weighs(whole: tuple[Path, Path, LocalGrid]) -> None:
    # A9: r·Σ(in + out)·4 bytes, within 1 %; nothing but LoRA factors.
    sites, _, grid = whole
    config = load_config(settings(sites, sites))
    spec = LocalSite(config, sites / "site-1").spec
    assert all(".lora_" in key for key in spec.keys)
    update = next(m for m in grid.replies if m.content.array_records)
    (array,) = update.content.array_records[wire.ARRAYS].values()
    assert 4 * spec.parameter_count <= len(array.data) <= 4 * spec.parameter_count * 1.01


def test_a_second_run_trains_no_root_and_forwards_no_reference(
    whole: tuple[Path, Path, LocalGrid], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = shutil.copytree(whole[0], tmp_path / "sites")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("trained or forwarded again")

    monkeypatch.setattr(site_work, "train_sft", refuse)
    monkeypatch.setattr(sft, "train_sft", refuse)
    original = site_work.reference_logps

    def stored_only(*args: Any) -> Any:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(reference, "_compute", refuse)
            return original(*args)

    monkeypatch.setattr(site_work, "reference_logps", stored_only)
    run(settings(sites, tmp_path / "runs"))
    assert files(tmp_path / "runs" / "r") == files(whole[1])


@pytest.mark.parametrize(("kind", "nth"), [("train", 4), ("evaluate", 3)])
def test_a_killed_run_resumes_to_the_same_bits(
    whole: tuple[Path, Path, LocalGrid], sites: Path, tmp_path: Path, kind: str, nth: int
) -> None:
    class Killed(BaseException):
        pass

    seen = {"n": 0}

    def tamper(site: int, reply: Message) -> Message:
        seen["n"] += reply.metadata.message_type == kind
        if seen["n"] == nth:
            raise Killed
        return reply

    with pytest.raises(Killed):
        run(settings(sites, tmp_path / "runs"), tamper=tamper)
    run(settings(sites, tmp_path / "runs", resume=str(tmp_path / "runs" / "r")))
    assert files(tmp_path / "runs" / "r") == files(whole[1])
    before, after = (
        [json.loads(line)["sites"] for line in (d / "rounds.jsonl").read_text().splitlines()]
        for d in (whole[1], tmp_path / "runs" / "r")
    )
    for old, new in zip(before, after, strict=True):
        assert [s["counts"] for s in old.values()] == [s["counts"] for s in new.values()]


def test_directories_named_by_node_config_give_the_same_bits(
    whole: tuple[Path, Path, LocalGrid], sites: Path, tmp_path: Path
) -> None:
    config = settings(tmp_path / "nowhere", tmp_path / "runs", min_sites=2)
    run(config, node_configs=[{"site-dir": str(sites / f"site-{k}")} for k in (2, 1)])
    assert files(tmp_path / "runs" / "r") == files(whole[1])


def test_one_site_equals_training_alone(sites: Path, tmp_path: Path) -> None:
    config = settings(sites, tmp_path / "runs", rounds=1)
    run(config, nodes=1)
    work = LocalSite(load_config(config), sites / "site-1")
    root = work.train(0, initial_state(work.spec, 20260713), None)
    assert root is not None
    alone = work.train(1, root.state, root.state)
    assert alone is not None
    found = load_adapter(tmp_path / "runs" / "r" / "adapters" / "round-1", work.spec)
    assert state_digest(found) == state_digest(alone.state)


def test_a_report_that_no_evaluation_could_take_is_told_before_training(
    sites: Path, tmp_path: Path
) -> None:
    work = LocalSite(load_config(settings(sites, tmp_path)), sites / "site-2")
    work.check()
    dev = [report.report_id for report in work.site.split("dev")]
    reports = tuple(
        replace(report, text=report.text + "\n<|im_end|>")
        if report.report_id == dev[-1]
        else report
        for report in work.site.reports
    )
    work.site = replace(work.site, reports=reports)
    with pytest.raises(DataError, match=r"the report of pair \d+ of \d+ holds <\|im_end\|>"):
        work.check()


def test_no_loss_over_few_pairs_leaves_a_site(sites: Path) -> None:
    toml = sites / "site-1" / "site.toml"
    toml.write_text(toml.read_text().replace("min_cell_size = 5", "min_cell_size = 100"))
    work = LocalSite(load_config(settings(sites, sites)), sites / "site-1")
    assert 0 < work.pair_count < 100
    with pytest.raises(TrainingError, match="the loss over fewer than 100 pairs"):
        work.train(0, initial_state(work.spec, 1), None, Adjustment(report_loss=True))


def test_a_site_without_pairs_is_evaluated_and_has_no_weight(sites: Path, tmp_path: Path) -> None:
    site = SiteDirectory.load(sites / "site-2")
    build_pairs(site, ["careful"])  # one teacher never disagrees with itself
    run(settings(sites, tmp_path / "runs", rounds=0))
    row = json.loads((tmp_path / "runs" / "r" / "rounds.jsonl").read_text())
    assert row["sites"]["site-2"]["pairs"] == 0
    assert row["sites"]["site-2"]["weight"] == 0.0
    assert row["sites"]["site-1"]["weight"] == 1.0
    assert row["sites"]["site-2"]["counts"]["reports"] == 6


def test_counts_over_too_few_reports_are_withheld(sites: Path, tmp_path: Path) -> None:
    site = SiteDirectory.load(sites / "site-2")
    dev = [r.report_id for r in site.split("dev")][2:]
    reports = [r for r in site.reports if r.report_id not in dev]
    candidates = {p.name: p.read_bytes() for p in site.candidates_dir.iterdir()}
    write_site(
        site.path,
        name=site.name,
        policy=site.policy,
        reports=reports,
        annotations=[site.annotations[r.report_id] for r in reports],
    )
    site.candidates_dir.mkdir()
    for name, data in candidates.items():
        (site.candidates_dir / name).write_bytes(data)
    build_pairs(SiteDirectory.load(site.path), ["careful", "literal", "eager", "coarse"])
    grid = run(settings(sites, tmp_path / "runs", rounds=0))
    row = json.loads((tmp_path / "runs" / "r" / "rounds.jsonl").read_text())
    assert row["sites"]["site-2"]["counts"] is None
    assert row["sites"]["site-2"]["no_counts_because"] == "withheld by the site's policy"
    assert row["client_mean"] == row["sites"]["site-1"]["location_disease_f1"]
    statements = [m.content[wire.CONFIG] for m in grid.replies if "pairs" in m.content[wire.CONFIG]]
    assert [s.get("dev-reports") for s in statements] == [6, None]


def broken_reports(sites: Path) -> None:
    path = sites / "site-2" / "reports.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], '{"report_id": "Mr Doe', *lines[3:]]) + "\n", "utf-8")


def stale_pairs(sites: Path) -> None:
    path = sites / "site-2" / "annotations.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    lines[0] |= {"diseases": ["pneumothorax"], "findings": []}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def no_pairs_file(sites: Path) -> None:
    (sites / "site-2" / "pairs.jsonl").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken_reports, r"reports.jsonl:3: .*the line is not valid JSON"),
        (stale_pairs, r"pairs.jsonl: the pairs are stale"),
        (no_pairs_file, r"pairs.jsonl: the site has no pairs yet"),
    ],
)
def test_a_site_that_cannot_train_says_so_before_round_zero(
    sites: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(sites)
    with pytest.raises(FedPrefError, match=r"site site-2: \[FP200\] " + message) as caught:
        run(settings(sites, tmp_path / "runs"))
    assert "Doe" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "runs" / "r" / "rounds.jsonl").exists()


def test_a_missing_model_is_said_by_every_site_at_once(sites: Path, tmp_path: Path) -> None:
    config = settings(sites, tmp_path / "runs") | {"model.path": str(tmp_path / "no-model")}
    with pytest.raises(FedPrefError, match=r"partition-0: \[FP300\] .*was not found"):
        run(config)


def test_a_site_with_another_prompt_is_refused_by_name(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalSite.hashes

    def hashes(self: LocalSite) -> Any:
        found = dict(real(self))
        return found | {"prompt": "0" * 64} if self.name == "site-2" else found

    monkeypatch.setattr(LocalSite, "hashes", hashes)
    with pytest.raises(HandshakeError, match=r"site site-2, key prompt: prompt differs: 0000"):
        run(settings(sites, tmp_path / "runs"))


def test_a_mistake_in_the_config_fails_before_any_site_is_asked(tmp_path: Path) -> None:
    config = settings(tmp_path, tmp_path / "runs") | {"lora.rnak": 3}
    grid = LocalGrid(client_app, config, 2)
    with pytest.raises(FedPrefError, match=r"did you mean 'lora.rank'"):
        run_server(grid, config)
    assert grid.sent == []
    assert not (tmp_path / "runs").exists()
