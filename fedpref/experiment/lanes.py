"""Running an experiment's jobs, Central beside the other arms, each lane under its own Flower."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from fedpref.errors import RoundError
from fedpref.experiment.plan import Experiment, Job
from fedpref.launch import LocalFlower, Scalar

Say = Callable[[str], None]
_WORTH_TELLING = ("client mean", "alone", "left out", "no reply", "cannot take part")


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
    central = [job for job in open_jobs if job.pooled]
    others = [job for job in open_jobs if not job.pooled]
    lanes = [lane for lane in ([others, central] if parallel else [open_jobs]) if lane]
    flowers = [LocalFlower(home, app=app) for _ in lanes]
    over = threading.Event()
    with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as pool:
        futures = [
            pool.submit(_lane, lane, flower, federation, over, say, on_log)
            for lane, flower in zip(lanes, flowers, strict=True)
        ]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except KeyboardInterrupt:
            say("stopping; the same command goes on from here")
            raise
        finally:
            # Whatever still runs has lost its purpose.
            over.set()
            while not all(future.done() for future in futures):
                # A Flower that was just starting is found the next time.
                for flower in flowers:
                    flower.stop()
                wait(futures, timeout=1.0)


def _lane(
    jobs: Sequence[Job],
    flower: LocalFlower,
    federation: Mapping[str, Scalar],
    over: threading.Event,
    say: Say,
    on_log: Say,
) -> None:
    with flower:
        for job in jobs:
            if over.is_set():
                return
            name = f"{job.arm}, seed {job.seed}"
            config = job.config
            if (job.run_dir / "config.json").exists():
                config = config.model_copy(update={"resume": str(job.run_dir), "run_id": ""})
            say(f"{name}: {'goes on' if config.resume else 'starts'}")
            try:
                flower.run(
                    config,
                    {**federation, "num-supernodes": job.nodes},
                    on_progress=partial(_tell, say, name),
                    on_log=on_log,
                )
            except RoundError as error:
                raise RoundError(
                    f"{name}: {error.what}",
                    fix="--verbose shows the whole log; once it is mended, the same command goes "
                    "on where it stopped",
                ) from None


def _tell(say: Say, name: str, line: str) -> None:
    """Pass on what a person wants to see of many runs: rounds, and sites that are left out."""
    if any(mark in line for mark in _WORTH_TELLING):
        say(f"{name}: {line}")
