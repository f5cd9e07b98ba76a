"""`comparison.json`: what the runs of an experiment came to, with what they were made of."""

from typing import Any, Final

from fedpref.evaluation.noniid import simulated_audit
from fedpref.evaluation.site_cohorts import label_names, read_cohorts
from fedpref.experiment.collect import check_agreements, collect, run_summary
from fedpref.experiment.plan import Experiment
from fedpref.experiment.results import compare_arms, compare_strategies

COMPARISON_FILE: Final = "comparison.json"


def comparison_record(experiment: Experiment) -> dict[str, Any]:
    """Return the whole content of `comparison.json` from the complete runs.

    Raises ResumeError if a run is not complete, DataError if the runs cannot be compared.
    """
    jobs = experiment.jobs()
    check_agreements(jobs)
    results = {
        arm.name: [collect(experiment, job) for job in jobs if job.arm == arm.name]
        for arm in experiment.arms
    }
    summary = run_summary(jobs[0])
    last = summary["rounds"][-1]["sites"]
    config = experiment.config.to_flat()
    # A run's own: of each run, and of each arm.
    own = {"seed"} if experiment.matched else {"seed", "strategy", "strategy-options"}
    return {
        "kind": "comparison",
        "complete": True,
        "run": experiment.folder.name,
        "synthetic": summary["synthetic"],
        "digest": experiment.config.digest,
        "config": {key: value for key, value in config.items() if key not in own},
        "seeds": list(experiment.seeds),
        "sites": {
            name: {
                "pairs": entry["pairs"],
                "dev_reports": None if entry["counts"] is None else entry["counts"]["reports"],
                "dev_pairs": None if entry["counts"] is None else entry["counts"]["pairs"],
            }
            for name, entry in last.items()
        },
        **(
            compare_arms(results)
            if experiment.matched
            else compare_strategies(results, experiment.arms)
        ),
        "audit": simulated_audit(
            label_names(experiment.sites[0].ontology),
            read_cohorts(experiment.sites),
            synthetic=summary["synthetic"],
        ).to_dict(),
        "runs": [
            {
                "arm": job.arm,
                "seed": job.seed,
                "path": str(job.run_dir.relative_to(experiment.folder)),
                "digest": job.config.digest,
            }
            for job in jobs
        ],
        "versions": summary["versions"],
    }
