"""One process, several sites and rounds: the base model is loaded once and stays as it was."""

import gc
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from transformers import AutoModelForCausalLM, Trainer

from fedpref.adapter_state import initial_state, state_digest
from fedpref.config import load_config
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.site_work import LocalSite
from fedpref.training import base_model


@pytest.mark.long  # three rounds of two sites
def test_sites_and_rounds_share_one_loaded_model(
    sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 0 and two more, each site opened anew for each message as the app does."""
    monkeypatch.setattr(base_model, "_loaded", {})
    loads = []
    load = AutoModelForCausalLM.from_pretrained

    def count(*args: object, **kwargs: object) -> object:
        loads.append(args)
        return load(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", count)
    values = {"training.accumulation": 2, "evaluation.max-new-tokens": 16}
    config = load_config({"sites": str(sites), "runs-dir": str(sites)} | values)
    spec = LocalSite(config, sites / "site-1").spec
    adapter, root = initial_state(spec, config.seed), None
    weights, objects, seen = [], [], set()
    for round_ in range(3):
        updates = []
        for name in ("site-1", "site-2"):
            work = LocalSite(config, sites / name)
            seen.add(id(work.base.model))
            trained = work.train(round_, adapter, root)
            assert trained is not None
            updates.append((trained.state, trained.trained_pair_count))
        adapter = weighted_mean([s for s, _ in updates], [n for _, n in updates])
        root = root or adapter
        for name in ("site-1", "site-2"):
            assert LocalSite(config, sites / name).evaluate(round_, adapter) is not None
        named = work.base.model.named_parameters()
        weights.append(state_digest({name: p.detach().numpy() for name, p in named}))
        gc.collect()
        objects.append(len(gc.get_objects()))
    assert len(loads) == len(seen) == 1
    assert len(set(weights)) == 1
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Trainer)]
    assert objects[2] - objects[1] < 1000


@pytest.mark.contract
def test_a_supernode_gives_each_message_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which frees everything when it ends: there is nothing for FedPref to free between rounds."""
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda args, **_: started.append(args))
    executor = subprocess_executor.SubprocessExecutor()
    for token in ("first", "second"):
        spec = SimpleNamespace(
            task_type=TaskType.CLIENT_APP,
            runtime_api_address="127.0.0.1:1",
            token=token,
            insecure=True,
            root_certificates_path=None,
            parent_pid=None,
            runtime_dependency_install=False,
            suppress_output=False,
        )
        executor.launch(spec)  # type: ignore[arg-type]
    assert [args[0] for args in started] == ["flwr-clientapp"] * 2
    assert ["first" in args for args in started] == [True, False]
