"""A site without model or data: its "training" is arithmetic that depends on all it should."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from local_grid import LocalGrid

from fedpref.adapter_state import AdapterSpec, AdapterState, state_digest
from fedpref.config import load_config
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation.cohort import known_to_coordinator
from fedpref.federation.edge import coded_errors_only
from fedpref.federation.site_worker import SiteWorker
from fedpref.residual import split
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.trained import Trained
from fedpref_app.server_app import app as server_app

PREFIX = "base_model.model.model.layers.0.self_attn.q_proj."

SPEC = AdapterSpec(
    rank=2,
    alpha=4.0,
    rslora=False,
    targets=("q_proj",),
    keys=(PREFIX + "lora_A.weight", PREFIX + "lora_B.weight"),
    shapes=((2, 6), (4, 2)),
)


def random_state(seed: int, spec: AdapterSpec = SPEC) -> AdapterState:
    generator = np.random.default_rng(seed)
    return {
        key: generator.normal(size=shape).astype(np.float32)
        for key, shape in zip(spec.keys, spec.shapes, strict=True)
    }


def trained_of(state: AdapterState, pairs: int, loss: float = 0.5) -> Trained:
    return Trained(state, pairs, 1, first_loss=9.0, last_loss=8.0, mean_loss=loss, seconds=0.0)


@dataclass
class FakeWork:
    """A `SiteWork`; `calls` lists what was asked of it."""

    name: str
    pair_count: int
    folder: Path
    spec: AdapterSpec = SPEC
    dev_reports: int | None = 40
    base_name: str = "fake"
    synthetic: bool = False
    weights: str = "w" * 64
    torch: str = "2.13.0"
    federation: str = "demo"
    calls: list[tuple[str, int]] = field(default_factory=list)
    adjustments: list[Adjustment] = field(default_factory=list)
    on_check: Callable[[], None] = lambda: None
    on_train: Callable[[int], None] = lambda round_: None
    on_evaluate: Callable[[int], None] = lambda round_: None

    @property
    def state_dir(self) -> Path:
        return self.folder / "state" / self.federation

    def check(self) -> None:
        self.on_check()

    def hashes(self) -> Mapping[str, str]:
        known = known_to_coordinator(load_config({}))
        return {
            "weights": self.weights,
            "tokenizer": "t" * 64,
            "prompt": known["prompt"],
            "ontology": known["ontology"],
        }

    def versions(self) -> Mapping[str, str]:
        return {
            "fedpref": known_to_coordinator(load_config({}))["version:fedpref"],
            "torch": self.torch,
        }

    def train(
        self,
        round_: int,
        start: AdapterState,
        root: AdapterState | None,
        adjustment: Adjustment = AS_USUAL,
    ) -> Trained | None:
        self.calls.append(("train", round_))
        self.adjustments.append(adjustment)
        self.on_train(round_)
        if not self.pair_count:
            return None
        # A function of the site, the round, the start and the root, so that each of them matters.
        name = sum(self.name.encode())
        shift = random_state(name + 1000 * round_, self.spec)
        residuals = [split(state, self.spec.rank)[1] for state in (start, root) if state]
        start, _ = split(start, self.spec.rank)
        pull, _ = split(root or start, self.spec.rank)
        trained = {
            key: (start[key] * np.float32(0.5) + shift[key] + np.float32(0.25) * pull[key])
            for key in start
        }
        for number, residual in enumerate(residuals, start=1):
            for key in residual or {}:
                trained[key] += np.float32(0.1 * number) * residual[key].mean()
        if adjustment.freeze_a:
            trained |= {key: start[key] for key in start if ".lora_A." in key}
        return trained_of(trained, self.pair_count, loss=name % 7 + 0.5 * round_ + 0.25)

    def evaluate(self, round_: int, adapter: AdapterState) -> EvaluationCounts | None:
        self.calls.append(("evaluate", round_))
        self.on_evaluate(round_)
        if self.dev_reports is None:
            return None
        tp = int(state_digest(adapter)[:2], 16)
        return EvaluationCounts(
            reports=self.dev_reports, tp=tp, fp=20, fn=30, disease_tp=tp, projected=self.dev_reports
        )


def make_sites(folder: Path, counts: Sequence[int], **options: Any) -> list[FakeWork]:
    """Sites a, b, c … with these pair counts."""
    return [
        FakeWork(f"site-{chr(97 + i)}", count, folder / f"site-{chr(97 + i)}", **options)
        for i, count in enumerate(counts)
    ]


def make_client_app(sites: Sequence[FakeWork]) -> Callable[[Message, Context], Message]:
    """What `fedpref_app.client_app` does, with fake work."""

    def client_app(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        partitions = int(context.node_config.get("num-partitions", 0))

        def answer() -> Message:
            work = sites[partition]
            config = load_config(context.run_config)
            worker = SiteWorker(work, config, partition=partition, partitions=partitions)
            kind = message.metadata.message_type
            return getattr(worker, kind)(message)

        return coded_errors_only(message, sites[partition].name, answer, partitions=partitions)

    return client_app


def make_grid(
    sites: Sequence[FakeWork], run_config: Mapping[str, Any], **options: Any
) -> LocalGrid:
    return LocalGrid(make_client_app(sites), run_config, len(sites), **options)


def run_server(grid: LocalGrid, run_config: Mapping[str, Any]) -> None:
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )
    server_app(grid, context)
