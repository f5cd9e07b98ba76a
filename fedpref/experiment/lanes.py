"""Running an experiment's jobs, Central beside the other arms, each lane under its own Flower."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from fedpref.experiment.plan import Experiment, Job
from fedpref.launch import LocalFlower, Scalar

Say = Callable[[str], None]


def run_jobs(
    experiment: Experiment,
    *,
    home: Path,
    app: Path,
    federation: Mapping[str, Scalar],
    parallel: bool,
    say: Say,
    on_log: Say,
) -> None:
    """Run every job that is not complete yet; a begun one goes on from its last closed round.

    With `parallel`, Central's runs (one client at a time) go on beside those of the federation.
    Raises the first error; the other lane's Flower is ended then, and nothing that is on disk lost.
    """
    open_jobs = [job for job in experiment.jobs() if not (job.run_dir / "summary.json").exists()]
    central = [job for job in open_jobs if job.arm == "central"]
    others = [job for job in open_jobs if job.arm != "central"]
    lanes = [lane for lane in ([others, central] if parallel else [open_jobs]) if lane]
    flowers = [LocalFlower(home, app=app) for _ in lanes]
    with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as pool:
        try:
            futures = [
                pool.submit(_lane, lane, flower, federation, say, on_log)
                for lane, flower in zip(lanes, flowers, strict=True)
            ]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            # Whatever still runs has lost its purpose: its log ends and its thread with it.
            for flower in flowers:
                flower.stop()


def _lane(
    jobs: Sequence[Job],
    flower: LocalFlower,
    federation: Mapping[str, Scalar],
    say: Say,
    on_log: Say,
) -> None:
    with flower:
        for job in jobs:
            name = f"{job.arm}, seed {job.seed}"
            config = job.config
            if (job.run_dir / "config.json").exists():
                config = config.model_copy(update={"resume": str(job.run_dir), "run_id": ""})
            say(f"{name}: {'goes on' if config.resume else 'starts'}")
            flower.run(
                config,
                {**federation, "num-supernodes": job.nodes},
                on_progress=partial(_tell, say, name),
                on_log=on_log,
            )


def _tell(say: Say, name: str, line: str) -> None:
    """Pass on what a person wants to see of many runs: rounds, and sites that are left out."""
    if line.startswith("round ") and ("client mean" in line or "left out" in line):
        say(f"{name}: {line}")
