"""The runs that an effect is asked for: two arms of run directories, with what sites stated there.

`effect` in the run config is "A - B": an arm is one run directory, or several with commas between
them (training seeds), with `@<round>` at its end if it is not the last round.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpref.config import RunConfig, load_config
from fedpref.errors import ConfigError, FedPrefError, collected, raise_all
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.evaluation.predictions import asked_digest
from fedpref.federation.checkpoint import RunDirectory
from fedpref.federation.effect_question import AskedRound, Question

SEPARATOR = " - "
_KEY = "effect"
_ROUND = re.compile(r"@(\d+)$")


@dataclass(frozen=True)
class FinishedRun:
    """A round of a run: its configuration, each site's adapter and stated counts.

    A site's counts are None if it withheld them or was left out of the round's evaluation.
    """

    path: Path
    config: RunConfig
    round: int
    adapters: Mapping[str, str]
    counts: Mapping[str, EvaluationCounts | None]
    synthetic: bool

    def asked(self) -> AskedRound:
        """Return the part of the question that is about this run."""
        return AskedRound(
            federation=self.config.federation,
            round=self.round,
            asked=asked_digest(self.config),
            adapters=dict(self.adapters),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON value for the result."""
        return {
            "run": self.path.name,
            "federation": self.config.federation,
            "strategy": self.config.strategy,
            "seed": self.config.seed,
            "round": self.round,
            "adapters": dict(self.adapters),
        }


@dataclass(frozen=True)
class Arms:
    """Two arms over the same sites, as many runs each."""

    a: tuple[FinishedRun, ...]
    b: tuple[FinishedRun, ...]

    @property
    def sites(self) -> list[str]:
        """The names of the sites, sorted."""
        return sorted(self.a[0].adapters)

    @property
    def synthetic(self) -> bool:
        """Whether the reports of a site are invented."""
        return any(run.synthetic for run in (*self.a, *self.b))

    def to_text(self) -> str:
        """Return the arms as the key `effect` names them, with absolute paths and rounds."""
        return SEPARATOR.join(
            f"{','.join(str(run.path) for run in arm)}@{arm[0].round}" for arm in (self.a, self.b)
        )

    def question(self) -> Question:
        """Return what the sites are asked."""
        return Question(a=[run.asked() for run in self.a], b=[run.asked() for run in self.b])

    def stated(self, site: str) -> list[list[EvaluationCounts | None]]:
        """Return what a site stated in its evaluations: (2, runs)."""
        return [[run.counts[site] for run in arm] for arm in (self.a, self.b)]


def read_arms(effect: str) -> Arms:
    """Return the arms that the key `effect` names.

    Raises ConfigError: it is not "A - B", a folder holds no run, a round is not closed, the arms
    have unequally many runs, or two runs have different sites. Both values are named.
    """
    parts = effect.split(SEPARATOR)
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise ConfigError(
            f"{effect!r} was given",
            fix='write "A - B": two run directories, or several with commas between them',
            key=_KEY,
        )
    problems: list[FedPrefError] = []
    a, b = (collected(problems, partial(_arm, part.strip())) for part in parts)
    raise_all(problems)
    assert a is not None
    assert b is not None
    if len(a) != len(b):
        raise ConfigError(
            f"arm A has {len(a)} runs and arm B {len(b)}",
            why="an effect is averaged over as many training seeds of both",
            fix="name as many runs of each",
            key=_KEY,
        )
    first, *others = (*a, *b)
    for run in others:
        if run.adapters.keys() != first.adapters.keys():
            raise ConfigError(
                f"the sites are {', '.join(first.adapters)} in {first.path.name} and "
                f"{', '.join(run.adapters)} in {run.path.name}",
                why="an effect compares two arms at the same sites",
                key=_KEY,
            )
    return Arms(a, b)


def _arm(text: str) -> tuple[FinishedRun, ...]:
    found = _ROUND.search(text)
    asked = int(found[1]) if found else None
    names = _ROUND.sub("", text).split(",")
    runs = tuple(_run(Path(name.strip()).absolute(), asked) for name in names)
    for run in runs[1:]:
        if run.round != runs[0].round:
            raise ConfigError(
                f"the last round is {runs[0].round} in {runs[0].path.name} and {run.round} in "
                f"{run.path.name}",
                fix="name one round for the arm: …@<round>",
                key=_KEY,
            )
    return runs


def _run(path: Path, asked: int | None) -> FinishedRun:
    try:
        config = load_config(json.loads((path / "config.json").read_text("utf-8"))["config"])
        agreement = json.loads((path / "agreement.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError):
        inside = sorted(f"runs/{found.parent.name}" for found in path.glob("runs/*/agreement.json"))
        raise ConfigError(
            "there is no run in this folder",
            why="config.json or agreement.json is missing or malformed",
            fix=f"name one of the runs in it: {', '.join(inside)}"
            if inside
            else "name a run directory, such as /absolute/path/of/runs/<id>",
            file=path,
            key=_KEY,
        ) from None
    run = RunDirectory(path, config)
    records = run.records()
    round_ = len(records) - 1 if asked is None else asked
    if not 0 <= round_ < len(records):
        raise ConfigError(
            f"round {max(round_, 0)} is asked for, the run has {len(records)} closed rounds",
            why="an effect is measured on the answers of an evaluated round",
            fix="finish the run, or name another round: …@<round>",
            file=path,
            key=_KEY,
        )
    record = records[round_]
    return FinishedRun(
        path,
        config,
        round_,
        # Sites that train alone have an adapter each.
        {s: record["adapter"] or run.of_site(s).adapter_hash(round_) for s in record["sites"]},
        {s: _counts(entry["counts"]) for s, entry in record["sites"].items()},
        bool(agreement["synthetic"]),
    )


def _counts(value: Mapping[str, Any] | None) -> EvaluationCounts | None:
    return None if value is None else EvaluationCounts.from_dict(value)
