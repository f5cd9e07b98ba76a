"""From the arms' results to the comparison: scores, effects with intervals, exposure. Pure.

Every score of every arm comes from the same reports through the same functions; an arm is read at
the report's home site, and Local at its own site's adapter (home routing).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np

from fedpref.errors import DataError
from fedpref.evaluation import paired_cluster_bootstrap, select_round
from fedpref.evaluation.bootstrap import STATISTICS, Statistic, counts_array
from fedpref.evaluation.metrics import (
    EvaluationCounts,
    RoundMetrics,
    client_mean,
    disease_f1,
    pooled,
    preference_accuracy,
    site_spread,
    summarise,
)
from fedpref.experiment.arms import CENTRAL, FEDPREF, MATCHED, Arm, leaves_training
from fedpref.experiment.collect import RoundResult, by_site
from fedpref.federation.report import SCORES
from fedpref.federation.strategies import LOCAL

Json = dict[str, Any]
# Runs of one arm: by seed, then by round.
Runs = Sequence[Sequence[RoundResult]]

CONTRASTS: Final = ((FEDPREF, LOCAL), (CENTRAL, FEDPREF))
BOOTSTRAP_SEED: Final = 0


def compare_arms(results: Mapping[str, Runs], *, draws: int = 10_000) -> Json:
    """Return scores by arm, round, seed and site, the selected round, effects and exposure.

    The arms are FedPref, Local and Central; the round is selected by FedPref (DESIGN 1.9). Raises
    DataError if the arms were not measured on the same reports or not trained on the same number of
    pairs in every round.
    """
    ordered = {arm: results[arm] for arm in MATCHED}
    return {
        **_compared(ordered, CONTRASTS, selected_round(results[FEDPREF]), draws),
        "weights": _weights(results[FEDPREF]),
        "trace": _trace(results[FEDPREF]),
    }


def compare_strategies(
    results: Mapping[str, Runs], arms: Sequence[Arm], *, draws: int = 10_000
) -> Json:
    """Return the same of several strategies at the last round, each against the first one.

    No score selects that round: the best round of one strategy need not be that of another, and a
    schedule such as FedDRAW's is made for the round it ends in. Each arm also has its `strategy`,
    with `same_roots`: whether its sites began with the very roots of the first arm (null where a
    run recorded none), and the weights and trace of its first seed's run. Raises DataError as
    `compare_arms`, and if strategies that leave the training as it is had different site roots.
    """
    first = arms[0].name
    ordered = {arm.name: results[arm.name] for arm in arms}
    contrasts = [(arm.name, first) for arm in arms[1:]]
    found = _compared(ordered, contrasts, len(ordered[first][0]) - 1, draws)
    roots = {name: _roots(runs) for name, runs in ordered.items()}
    _check_roots(roots, arms)
    for arm in arms:
        own = roots[arm.name]
        same = None if own is None or roots[first] is None else own == roots[first]
        found["arms"][arm.name] |= {
            "strategy": {"strategy": arm.strategy, "options": arm.options, "same_roots": same},
            "weights": _weights(ordered[arm.name]),
            "trace": _trace(ordered[arm.name]),
        }
        if same is False:
            found["notes"].append(
                f"{arm.name} does not start from the site roots of {first}: its strategy changes "
                "how sites train, in round 0 as well"
                if leaves_training(arm) is False
                else f"{arm.name} does not start from the site roots of {first}"
            )
    return found


def _compared(
    results: Mapping[str, Runs],
    contrasts: Sequence[tuple[str, str]],
    selected: int,
    draws: int,
) -> Json:
    """Return what all comparisons have; the first arm is the one whose reports count."""
    first = next(iter(results))
    results = {arm: _on_common_reports(results, arm) for arm in results}
    notes = _withheld(results[first]) + _other_pairs(results)
    exposure = _exposure(results)
    arms = {arm: {"rounds": _scores(runs), "exposure": exposure} for arm, runs in results.items()}
    for arm, runs in results.items():
        records = [result.record for run in runs for result in run]
        arms[arm]["bytes"] = {
            way: sum(record["bytes"][way] for record in records) for way in ("down", "up")
        }
        arms[arm]["seconds"] = sum(record["seconds"]["total"] for record in records)
    cohort = _Cohort(results[first][0][0])
    rounds = range(len(results[first][0]))
    counts = {
        arm: [cohort.counts([run[t] for run in runs]) for t in rounds]
        for arm, runs in results.items()
    }
    return {
        "rounds": rounds[-1],
        "selected_round": selected,
        "notes": notes,
        "arms": arms,
        "effects": [
            *(
                {"a": a, "b": b, "round": t, "statistic": statistic}
                | cohort.effect(counts[a][t], counts[b][t], statistic, draws)
                for a, b in contrasts
                for t in rounds
                for statistic in STATISTICS
            ),
            *(
                {"a": a, "b": b, "round": selected, "site": site}
                | cohort.effect(
                    counts[a][selected], counts[b][selected], "client_mean", draws, site
                )
                for a, b in contrasts
                for site in cohort.names
            ),
        ],
        "trajectory_intervals": {
            arm: [
                {
                    statistic: cohort.interval(of_round, statistic, draws)
                    for statistic in ("client_mean", "worst_site")
                }
                for of_round in counts[arm]
            ]
            for arm in results
        },
    }


def _weights(runs: Runs) -> list[Json]:
    """Return the sites' weights of the first seed, round by round."""
    return [
        {site: entry["weight"] for site, entry in result.record["sites"].items()}
        for result in runs[0]
    ]


def _trace(runs: Runs) -> list[Json]:
    """Return what the strategy said with the first seed, round by round."""
    return [result.record.get("strategy", {}) for result in runs[0]]


def _roots(runs: Runs) -> list[Json] | None:
    """Return the hash of each site's root by seed, null for a site without pairs; None if unknown.

    The root of a site is what it sent in round 0.
    """
    sites = [run[0].record["sites"] for run in runs]
    if any("update" not in entry for of_seed in sites for entry in of_seed.values()):
        return None
    return [{site: entry["update"] for site, entry in of_seed.items()} for of_seed in sites]


def _check_roots(roots: Mapping[str, list[Json] | None], arms: Sequence[Arm]) -> None:
    """Raise DataError unless all arms that leave the training as it is share their site roots."""
    known = [
        (arm.name, found)
        for arm in arms
        if leaves_training(arm) and (found := roots[arm.name]) is not None
    ]
    for name, found in known[1:]:
        first, expected = known[0]
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            for site in one:
                if one[site] != other.get(site):
                    raise DataError(
                        f"{name} began with the root {str(other.get(site))[:12]}, {first} with "
                        f"{str(one[site])[:12]} (seed number {number + 1})",
                        why="strategies that leave the training as it is share the sites' roots",
                        fix="compare into another folder",
                        site=site,
                    )


def selected_round(fedpref: Runs) -> int:
    """Return the common round of all arms, by FedPref's means over seeds (DESIGN 1.9)."""
    rows = _scores(fedpref)
    means = [row["client_mean"] for row in rows]
    if all(mean is None for mean in means):
        raise DataError(
            "no round has a client mean",
            why="no development report has a finding, in its annotation or in an answer",
            fix="give the sites development reports with findings",
        )
    return select_round(means, [row["worst_site"] for row in rows])


def _withheld(first: Runs) -> list[str]:
    sites = sorted({site for run in first for result in run for site in result.withheld})
    return [f"site {site} withholds its counts and is in no score of any arm" for site in sites]


def _other_pairs(results: Mapping[str, Runs]) -> list[str]:
    """Return whose preference accuracies are over other pairs than the first arm's."""
    first = next(iter(results))
    expected = results[first][0][0].pairs.pairs
    notes = []
    for arm, runs in results.items():
        found = {result.pairs.pairs for run in runs for result in run}
        if found != {expected}:
            notes.append(
                f"arm {arm} was asked about {', '.join(map(str, sorted(found)))} held-out pairs, "
                f"{first} about {expected} (a site with few pairs gives out nothing on them): its "
                "preference accuracy is over other pairs"
            )
    return notes


class _Cohort:
    """The reports that all arms are measured on, in a fixed order."""

    def __init__(self, result: RoundResult) -> None:
        self.reports = sorted(result.reports)
        self.site = np.array([result.reports[name].site for name in self.reports])
        self.patient = np.array([result.reports[name].patient for name in self.reports])
        self.names = [str(name) for name in np.unique(self.site)]

    def counts(self, seeds: Sequence[RoundResult]) -> np.ndarray:
        """Return (seeds, reports, 3) of one arm and round."""
        return counts_array(
            [
                {
                    name: (r.counts.tp, r.counts.fp, r.counts.fn)
                    for name, r in result.reports.items()
                }
                for result in seeds
            ],
            self.reports,
        )

    def effect(
        self, a: np.ndarray, b: np.ndarray, statistic: Statistic, draws: int, site: str = ""
    ) -> Json:
        """Return the effect of a over b, at one site if it is named."""
        rows = self.site == site if site else np.ones(len(self.reports), dtype=bool)
        found = paired_cluster_bootstrap(
            a[:, rows],
            b[:, rows],
            self.site[rows],
            self.patient[rows],
            statistic=statistic,
            draws=draws,
            seed=BOOTSTRAP_SEED,
        )
        return asdict(found)

    def interval(self, arm: np.ndarray, statistic: Statistic, draws: int) -> list[float] | None:
        """Return the interval of one arm's own score: its effect over an arm that is never right.

        Such an arm has one false positive a report, so that its F1 is 0 in every draw.
        """
        never_right = np.zeros_like(arm)
        never_right[..., 1] = 1
        found = self.effect(arm, never_right, statistic, draws)
        return None if found["degenerate"] else [found["low"], found["high"]]


def _on_common_reports(results: Mapping[str, Runs], arm: str) -> list[list[RoundResult]]:
    """Return an arm's results on the first one's reports; a site that withholds is in none."""
    first = next(iter(results))
    wanted = set(results[first][0][0].reports)
    kept: list[list[RoundResult]] = []
    for runs in results[arm]:
        kept.append([])
        for number, result in enumerate(runs):
            missing = wanted - result.reports.keys()
            if missing:
                raise DataError(
                    f"arm {arm} lacks {len(missing)} of the {len(wanted)} development reports of "
                    f"{first} in round {number}",
                    why="arms are compared on the same reports only",
                    fix="see which site gave no counts: fedpref summary of the run",
                )
            reports = {key: value for key, value in result.reports.items() if key in wanted}
            kept[-1].append(replace(result, reports=reports))
    return kept


def _exposure(results: Mapping[str, Runs]) -> Json:
    """Return how often each pair was trained on; DataError unless it is the same in every arm."""
    first = next(iter(results))
    trained = {
        (arm, number, t): result.trained_pairs
        for arm, runs in results.items()
        for number, run in enumerate(runs)
        for t, result in enumerate(run)
    }
    if (
        len(set(trained.values())) != 1
        or len({len(run) for r in results.values() for run in r}) != 1
    ):
        expected = trained[first, 0, 0]
        arm, number, t = next((k for k, v in trained.items() if v != expected), (first, 0, 0))
        raise DataError(
            f"arm {arm} trained {trained[arm, number, t]} pairs in round {t}, {first} {expected} "
            "in round 0",
            why="every pair has one SFT and the same number of DPO exposures in each arm",
            fix="see which site was left out: fedpref summary of the run",
        )
    rounds = len(results[first][0])
    return {"pairs": trained[first, 0, 0], "sft": 1, "dpo": rounds - 1}


def _scores(runs: Runs) -> list[Json]:
    """Return one entry a round: means over seeds, and each seed's own scores."""
    return [_round_scores([run[t] for run in runs]) for t in range(len(runs[0]))]


def _round_scores(seeds: Sequence[RoundResult]) -> Json:
    rows = [_seed_scores(result) for result in seeds]
    return {
        **{name: client_mean(row[name] for row in rows) for name in (*SCORES, "site_spread")},
        **{
            part: {site: client_mean(row[part][site] for row in rows) for site in rows[0][part]}
            for part in ("sites", "disease_sites")
        },
        "by_seed": rows,
    }


def _seed_scores(result: RoundResult) -> Json:
    counts: dict[str, EvaluationCounts] = by_site(result)
    scores: RoundMetrics = summarise(counts)
    return {
        **{name: getattr(scores, name) for name in SCORES},
        # Pairs are pooled over sites, and Central's belong to no site.
        "preference_accuracy": preference_accuracy(result.pairs),
        "site_spread": site_spread(scores.sites.values()),
        "sites": dict(scores.sites),
        "disease_sites": {site: disease_f1(c) for site, c in counts.items()},
        "counts": (pooled(counts.values()) + result.pairs).to_dict(),
    }
