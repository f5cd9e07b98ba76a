"""Each strategy once with the bundled model: real training, real sites, real apps."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import run_server
from local_grid import LocalGrid
from safetensors.numpy import load_file

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state
from fedpref.config import load_config
from fedpref.federation import site_work
from fedpref.federation.strategies import LOCAL, NAMED
from fedpref.residual import rank_of
from fedpref_app.client_app import app as client_app

# Three sites are too few for the trimmed mean's own default.
OPTIONS = {"FedTrimmedAvg": "beta = 0.34", "FedProx": "proximal-mu = 0.5", "FedAdam": "eta = 0.001"}
STRATEGIES = [name for name in NAMED if name != LOCAL]


@pytest.fixture(scope="module")
def folder(copy_sites: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites; their state is shared, so that the same root is trained once."""
    folder = tmp_path_factory.mktemp("strategies")
    sites = copy_sites(folder / "sites")
    shutil.copytree(sites / "site-2", sites / "site-3")
    about = sites / "site-3" / "site.toml"
    about.write_text(about.read_text().replace("site-2", "site-3"))
    return folder


def run(folder: Path, name: str, *, nodes: int = 3, **values: Any) -> list[dict[str, Any]]:
    config = {
        "sites": str(folder / "sites"),
        "runs-dir": str(folder / "runs"),
        "run-id": name,
        "rounds": 1,
        "join-deadline": 30.0,
        "training.accumulation": 2,
        "evaluation.max-new-tokens": 4,
        "strategy": name,
        "strategy-options": OPTIONS.get(name, ""),
    } | values
    run_server(LocalGrid(client_app, config, nodes), config)
    lines = (folder / "runs" / str(config["run-id"]) / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def adapter(folder: Path, run_id: str, round_: int) -> AdapterState:
    path = folder / "runs" / run_id / "adapters" / f"round-{round_}" / "adapter_model.safetensors"
    return load_file(path)


def the_same(one: AdapterState, other: AdapterState, part: str) -> bool:
    keys = [key for key in one if part in key]
    assert keys
    return all(np.array_equal(one[key], other[key]) for key in keys)


def test_sites_change_their_sft_as_the_strategy_asks(folder: Path) -> None:
    names = ["pair-fedavg", "FedProx", "ffa"]
    (rows,) = zip(*(run(folder, name, rounds=0) for name in names), strict=True)
    norms = [[site["norm"] for site in row["sites"].values()] for row in rows]
    assert all(held < free for free, held in zip(norms[0], norms[1], strict=True))
    spec = AdapterSpec.from_dict(
        json.loads((folder / "runs" / "ffa" / "agreement.json").read_text())["adapter_spec"]
    )
    initial = initial_state(spec, load_config({}).seed)
    assert the_same(adapter(folder, "ffa", 0), initial, ".lora_A.")
    assert not the_same(adapter(folder, "ffa", 0), initial, ".lora_B.")
    assert not the_same(adapter(folder, "pair-fedavg", 0), initial, ".lora_A.")
    # Each of the three has a root of its own.
    roots = folder / "sites" / "site-1" / "state" / "demo" / "roots"
    assert len(list(roots.iterdir())) == 3


def test_policy_and_reference_serve_the_residual_of_fedex(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    ranks: list[tuple[int, ...]] = []
    train_dpo, reference_logps = site_work.train_dpo, site_work.reference_logps

    def reference(base: Any, spec: AdapterSpec, root: AdapterState, *rest: Any) -> Any:
        ranks.append((rank_of(root),))
        return reference_logps(base, spec, root, *rest)

    def train(base: Any, spec: AdapterSpec, state: AdapterState, *rest: Any, **more: Any) -> Any:
        trained = train_dpo(base, spec, state, *rest, **more)
        assert trained is not None
        losses.append(trained.first_loss)
        ranks.append((rank_of(state), rank_of(trained.state)))
        return trained

    monkeypatch.setattr(site_work, "reference_logps", reference)
    monkeypatch.setattr(site_work, "train_dpo", train)
    rows = run(folder, "fedex", nodes=2)
    rank = load_config({}).lora.rank
    first, second = (rank + row["strategy"]["residual_rank"] for row in rows)
    assert rank < first < second
    assert ranks == [(first,), (first, rank)] * 2
    # Round 1 starts from its reference: no bit of difference between the two.
    assert losses == pytest.approx([math.log(2)] * 2, rel=2**-22)
    for row in rows:
        assert row["refused"] == {"training": {}, "evaluation": {}}
        assert all(site["counts"]["reports"] == 6 for site in row["sites"].values())


@pytest.mark.long
def test_each_strategy_trains_and_is_scored(folder: Path) -> None:
    records = {name: run(folder, name, **{"run-id": f"whole-{name}"}) for name in STRATEGIES}
    for name, rows in records.items():
        assert len(rows) == 2, name
        for row in rows:
            assert row["trained"], name
            assert row["refused"] == {"training": {}, "evaluation": {}}
            assert all(site["counts"]["reports"] == 6 for site in row["sites"].values())
    adapters = {name: [row["adapter"] for row in rows] for name, rows in records.items()}
    # Two of three sites are the same: each of these three gives their adapter.
    assert adapters["FedMedian"] == adapters["FedTrimmedAvg"] == adapters["Krum"]
    del adapters["FedTrimmedAvg"], adapters["Krum"]
    assert len({a for pair in adapters.values() for a in pair}) == 2 * len(adapters)
    assert the_same(adapter(folder, "whole-ffa", 0), adapter(folder, "whole-ffa", 1), ".lora_A.")
