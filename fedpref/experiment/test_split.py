"""The policies of a comparison on the sites' test split: answers first, then the result."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedpref.adapter_state import AdapterSpec, load_adapter
from fedpref.data import SiteDirectory
from fedpref.evaluation.locked_test import Case, LockedResult, PolicyCounts, locked_result
from fedpref.evaluation.predictions import read_predictions
from fedpref.evaluation.site_evaluation import evaluate_site
from fedpref.experiment.plan import Experiment, Job
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model


def run_locked_test(
    experiment: Experiment, cases: Sequence[Case], round_: int, *, say: Callable[[str], None]
) -> LockedResult:
    """Return the result of FedPref's and Central's adapters after `round_` on the test split.

    Each policy answers every test report once; the answers stay in the sites' state.
    """
    settings = experiment.config.model
    base = load_base_model(
        settings.path,
        dtype=settings.dtype,
        device=settings.device,
        threads=experiment.config.training.threads,
    )
    spec = make_spec(base, experiment.config.lora)
    counts: dict[str, list[PolicyCounts]] = {"fedpref": [], "central": []}
    for job in experiment.jobs():
        if job.arm in counts:
            say(f"{job.arm}, seed {job.seed}: answering {len(cases)} test reports")
            counts[job.arm].append(_policy(experiment, job, round_, base, spec))
    return locked_result(cases, fedpref=counts["fedpref"], central=counts["central"])


def _policy(
    experiment: Experiment, job: Job, round_: int, base: BaseModel, spec: AdapterSpec
) -> PolicyCounts:
    state = load_adapter(job.run_dir / "adapters" / f"round-{round_}", spec)
    counts: PolicyCounts = {}
    for site in experiment.sites:
        path = _answers(site, job)
        evaluate_site(
            base,
            spec,
            state,
            site,
            [],
            prompt_style=job.config.prompt.style,
            ontology=site.ontology,
            settings=job.config.evaluation,
            predictions=path,
            split="test",
        )
        rows = read_predictions(path)
        counts = {**counts, **{f"{site.name}/{row.report_id}": row.counts for row in rows}}
    return counts


def _answers(site: SiteDirectory, job: Job) -> Path:
    folder = site.state_dir(job.config.federation) / "test"
    return folder / f"{job.arm}-{job.seed}.jsonl"
