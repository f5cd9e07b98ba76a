"""The same arms over several partitions of the data: opened together, then ranked.

A partition is one division of the data among sites. Each has a comparison of its own; over them,
arms are ranked as the authors of FedDRAW rank theirs (`evaluation.ranks`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from fedpref.config import RunConfig
from fedpref.errors import DataError, FedPrefError, collected, raise_all
from fedpref.evaluation.metrics import complete_mean
from fedpref.evaluation.ranks import rank_strategies
from fedpref.experiment.arms import Arm
from fedpref.experiment.plan import Opening, open_experiment

Json = dict[str, Any]

PARTITIONS_FILE: Final = "partitions.json"
ALPHA: Final = 0.05
NO_SCORE: Final = "an arm has no score"
RANKED_BY: Final = ("client_mean", "worst_site")


def open_partitions(
    folder: Path,
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    arms: Sequence[Arm],
    model: Mapping[str, str],
) -> list[Opening]:
    """Return one checked experiment a configuration (they differ in `sites`); nothing is written.

    A single one is in `folder` itself, several are in folders of their own in it. Raises every
    problem of every partition at once; two of equal content are one of them.
    """
    problems: list[FedPrefError] = []
    openings: list[Opening] = []
    for number, config in enumerate(configs, start=1):
        place = folder if len(configs) == 1 else folder / f"partition-{number}"
        step = partial(open_experiment, place, config, seeds, arms=arms, model=model)
        opening = collected(problems, step)
        if opening is None:
            continue
        same = next((o for o in openings if o.plan["sites"] == opening.plan["sites"]), None)
        if same is not None:
            problems.append(
                DataError(
                    f"the sites are those of {same.experiment.config.sites}",
                    why="one partition twice says nothing about other partitions",
                    fix="leave one out, or divide the data otherwise (fedpref partition --seed …)",
                    file=config.sites,
                )
            )
        openings.append(opening)
    raise_all(problems)
    return openings


def ranking(
    score: str,
    arms: Sequence[str],
    rows: Mapping[str, Mapping[str, float | None]],
) -> Json:
    """Return ranks, average ranks and both tests of the arms' scores, as a JSON value.

    `rows` are the scores by partition and arm. A partition in which an arm has no score is in no
    rank; where there are no tests, `degenerate` says why.
    """
    scores = [[row[arm] for arm in arms] for row in rows.values()]
    found = rank_strategies(scores, alpha=ALPHA)
    average, friedman, nemenyi = found.average, found.friedman, found.nemenyi
    return {
        "score": score,
        "partitions": [
            {
                "comparison": name,
                "scores": {arm: row[arm] for arm in arms},
                "ranks": None if rank is None else dict(zip(arms, rank, strict=True)),
                "left_out": NO_SCORE if rank is None else None,
            }
            for (name, row), rank in zip(rows.items(), found.ranks, strict=True)
        ],
        "ranked_partitions": found.partitions,
        "average_ranks": None if average is None else dict(zip(arms, average, strict=True)),
        "friedman": None if friedman is None else vars(friedman),
        "nemenyi": None
        if nemenyi is None
        else {
            "alpha": nemenyi.alpha,
            "critical_difference": nemenyi.critical_difference,
            "pairs": [
                vars(pair) | {"a": arms[pair.a], "b": arms[pair.b]} for pair in nemenyi.pairs
            ],
        },
        "degenerate": found.degenerate,
    }


def partitions_record(run: str, comparisons: Mapping[str, Json]) -> Json:
    """Return the content of `partitions.json` from the comparisons by their folders' names.

    An arm's scores are means over the partitions, each at its selected round; null if one lacks it.
    `bytes` are those of one run, both ways, a mean over seeds and partitions.
    """
    first = next(iter(comparisons.values()))
    arms = list(first["arms"])
    at = {name: _selected(found) for name, found in comparisons.items()}

    def rows(score: str) -> dict[str, dict[str, float | None]]:
        return {name: {arm: at[name][arm][score] for arm in arms} for name in comparisons}

    rankings = {score: ranking(score, arms, rows(score)) for score in RANKED_BY}
    return {
        "kind": "partitions",
        "complete": True,
        "run": run,
        "synthetic": any(found["synthetic"] for found in comparisons.values()),
        "seeds": first["seeds"],
        # Mostly the same everywhere.
        "notes": list(dict.fromkeys(n for found in comparisons.values() for n in found["notes"])),
        "partitions": [
            {
                "path": name,
                "sites": found["config"]["sites"],
                "selected_round": found["selected_round"],
            }
            for name, found in comparisons.items()
        ],
        "arms": {
            arm: {
                **{
                    score: complete_mean([at[name][arm][score] for name in comparisons])
                    for score in ("client_mean", "worst_site", "site_spread")
                },
                "bytes": complete_mean(
                    [
                        sum(found["arms"][arm]["bytes"].values()) / len(found["seeds"])
                        for found in comparisons.values()
                    ]
                ),
            }
            for arm in arms
        },
        "rankings": rankings,
    }


def _selected(found: Json) -> dict[str, Json]:
    """Return each arm's scores at the comparison's round."""
    at = found["selected_round"]
    return {arm: value["rounds"][at] for arm, value in found["arms"].items()}
