"""The policies of a comparison on the sites' test split: loaded first, then asked once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpref.adapter_state import AdapterSpec, AdapterState, state_digest
from fedpref.errors import DataError
from fedpref.evaluation.locked_test import Case, LockedResult, PolicyCounts, locked_result
from fedpref.evaluation.predictions import read_predictions
from fedpref.evaluation.site_evaluation import evaluate_site
from fedpref.experiment.plan import Experiment, Job
from fedpref.residual import load_served
from fedpref.training.adapter import make_spec
from fedpref.training.base_model import BaseModel, load_base_model


@dataclass(frozen=True)
class Policies:
    """The base model and the adapters after one round: FedPref's and Central's, seed by seed."""

    base: BaseModel
    spec: AdapterSpec
    adapters: Sequence[tuple[Job, AdapterState]]


def load_policies(experiment: Experiment, round_: int) -> Policies:
    """Return all that answering takes, so that nothing can be missing once the lock is made.

    Raises DataError if an adapter is not the one that its run has recorded.
    """
    settings = experiment.config.model
    base = load_base_model(
        settings.path,
        dtype=settings.dtype,
        device=settings.device,
        threads=experiment.config.training.threads,
    )
    spec = make_spec(base, experiment.config.lora)
    adapters = []
    for job in experiment.jobs():
        if job.arm == "local":
            continue
        folder = job.run_dir / "adapters" / f"round-{round_}"
        state = load_served(folder, spec)
        recorded = str(job.records()[round_]["adapter"])
        if state_digest(state) != recorded:
            raise DataError(
                f"the adapter is {state_digest(state)[:12]}, the run recorded {recorded[:12]}",
                why="what is tested must be what was selected",
                fix="restore the run's folder",
                file=folder,
            )
        adapters.append((job, state))
    return Policies(base, spec, adapters)


def run_locked_test(
    experiment: Experiment, policies: Policies, cases: Sequence[Case], say: Callable[[str], None]
) -> LockedResult:
    """Return the result of the policies on the test split; each answers every report once.

    The answers stay in the sites' state.
    """
    counts: dict[str, list[PolicyCounts]] = {"fedpref": [], "central": []}
    for job, state in policies.adapters:
        say(f"{job.arm}, seed {job.seed}: answering {len(cases)} test reports")
        counts[job.arm].append(_answers(experiment, policies, job, state))
    return locked_result(cases, fedpref=counts["fedpref"], central=counts["central"])


def _answers(
    experiment: Experiment, policies: Policies, job: Job, state: AdapterState
) -> PolicyCounts:
    counts: PolicyCounts = {}
    for site in experiment.sites:
        folder = site.state_dir(job.config.federation) / "test"
        path = folder / f"{job.arm}-{job.seed}.jsonl"
        evaluate_site(
            policies.base,
            policies.spec,
            state,
            site,
            [],
            prompt_style=job.config.prompt.style,
            ontology=site.ontology,
            settings=job.config.evaluation,
            training=job.config.training,
            predictions=path,
            split="test",
        )
        rows = read_predictions(path)
        counts = {**counts, **{f"{site.name}/{row.report_id}": row.counts for row in rows}}
    return counts
