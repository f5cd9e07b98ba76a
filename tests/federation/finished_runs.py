"""Finished federations without training: site directories with kept answers, run directories."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fake_site import SPEC

from fedpref.config import RunConfig, load_config
from fedpref.data import Annotation, Report, SiteDirectory, write_site
from fedpref.demo.generate import sample_report
from fedpref.demo.styles import STYLES
from fedpref.evaluation.metrics import pooled, report_counts
from fedpref.evaluation.predictions import Prediction, predictions_path, write_predictions
from fedpref.federation.handshake import Agreement
from fedpref.files import write_jsonl
from fedpref.hashing import digest
from fedpref.task import project


def make_sites(folder: Path, patients: Sequence[int]) -> list[SiteDirectory]:
    """Sites a, b, c … with so many patients; every fifth patient has two development reports."""
    sites = []
    for k, count in enumerate(patients):
        rng = np.random.Generator(np.random.Philox(key=[11, k]))
        name = f"site-{chr(97 + k)}"
        whose = [*range(count), *range(0, count, 5)]
        made = [sample_report(rng, STYLES[k]) for _ in whose]
        write_site(
            folder / name,
            name=name,
            synthetic=True,
            reports=[
                Report(f"report-{k}-{i}", f"patient-{k}-{who}", "dev", report.text)
                for i, (who, report) in enumerate(zip(whose, made, strict=True))
            ],
            annotations=[
                Annotation(f"report-{k}-{i}", report.structure) for i, report in enumerate(made)
            ],
        )
        sites.append(SiteDirectory.load(folder / name))
    return sites


def adapter_of(run_id: str, site: str, round_: int) -> str:
    """A made-up adapter hash; that of all sites unless the run is a local one."""
    return digest([run_id, site if run_id.startswith("local") else "", round_])


def finish_run(
    folder: Path, made: Sequence[SiteDirectory], run_id: str, right: float, /, **settings: Any
) -> Path:
    """A run of two rounds in which the share `right` of the answers is the annotation."""
    config = load_config({"sites": "nowhere", "strategy": _strategy(run_id), **settings})
    run = folder / "runs" / run_id
    run.mkdir(parents=True)
    agreement = Agreement(SPEC, {}, {}, {site.name: 3 for site in made}, synthetic=True)
    (run / "agreement.json").write_text(json.dumps(agreement.to_dict()))
    (run / "config.json").write_text(json.dumps({"config": config.to_flat()}))
    local = run_id.startswith("local")
    rounds = []
    for t in (0, 1):
        entries = {site.name: {"counts": _answer(site, config, run_id, t, right)} for site in made}
        common = None if local else adapter_of(run_id, "", t)
        rounds.append({"round": t, "adapter": common, "sites": entries})
    write_jsonl(run / "rounds.jsonl", rounds)
    for site in made if local else ():
        own = [{"round": t, "adapter": adapter_of(run_id, site.name, t)} for t in (0, 1)]
        write_jsonl(run / "sites" / site.name / "rounds.jsonl", own)
    return run


def kept_answers(site: SiteDirectory, run: Path, round_: int = 1) -> Path:
    """Where a site keeps its answers of a round of such a run."""
    config = load_config(json.loads((run / "config.json").read_text())["config"])
    state = site.state_dir(config.federation)
    return predictions_path(state, config, round_, adapter_of(run.name, site.name, round_))


def _strategy(run_id: str) -> str:
    return "local" if run_id.startswith("local") else "pair-fedavg"


def _answer(
    site: SiteDirectory, config: RunConfig, run_id: str, round_: int, right: float
) -> dict[str, int] | None:
    """Keep the answers of a round, unless there are too few reports; return what is stated."""
    reports = site.split("dev")
    if len(reports) < site.policy.min_cell_size:
        return None
    rng = np.random.default_rng([round_, *digest([run_id, site.name]).encode()])
    truths = [site.annotations[report.report_id] for report in reports]
    rows = []
    for report, truth in zip(reports, truths, strict=True):
        other = truths[rng.integers(len(truths))].structure
        text = (truth.structure if rng.random() < right else other).to_json()
        projection = project(text)
        counts = report_counts(projection, truth.structure, truth.ignore, truncated=False)
        rows.append(
            Prediction(report.report_id, report.patient_id, None, text, projection.failure, counts)
        )
    adapter = adapter_of(run_id, site.name, round_)
    write_predictions(
        predictions_path(site.state_dir(config.federation), config, round_, adapter), rows
    )
    return pooled(row.counts for row in rows).to_dict()
