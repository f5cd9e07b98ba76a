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
    summarise,
)
from fedpref.experiment.collect import RoundResult, by_site
from fedpref.experiment.plan import ARMS, Arm
from fedpref.federation.report import SCORES

Json = dict[str, Any]
# Runs of one arm: by seed, then by round.
Runs = Sequence[Sequence[RoundResult]]

CONTRASTS: Final[tuple[tuple[Arm, Arm], ...]] = (("fedpref", "local"), ("central", "fedpref"))
BOOTSTRAP_SEED: Final = 0


def compare_arms(results: Mapping[Arm, Runs], *, draws: int = 10_000) -> Json:
    """Return scores by arm, round, seed and site, the selected round, effects and exposure.

    Raises DataError if the arms were not measured on the same reports or not trained on the same
    number of pairs in every round.
    """
    results = {arm: _on_common_reports(results, arm) for arm in ARMS}
    notes = _withheld(results["fedpref"]) + _other_pairs(results)
    exposure = _exposure(results)
    arms = {arm: {"rounds": _scores(runs), "exposure": exposure} for arm, runs in results.items()}
    for arm, runs in results.items():
        records = [result.record for run in runs for result in run]
        arms[arm]["bytes"] = {
            way: sum(record["bytes"][way] for record in records) for way in ("down", "up")
        }
        arms[arm]["seconds"] = sum(record["seconds"]["total"] for record in records)
    fedpref: list[Json] = arms["fedpref"]["rounds"]  # type: ignore[assignment]
    selected = _selected(fedpref)
    cohort = _Cohort(results["fedpref"][0][0])
    rounds = range(len(fedpref))
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
                for a, b in CONTRASTS
                for t in rounds
                for statistic in STATISTICS
            ),
            *(
                {"a": a, "b": b, "round": selected, "site": site}
                | cohort.effect(
                    counts[a][selected], counts[b][selected], "client_mean", draws, site
                )
                for a, b in CONTRASTS
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
            for arm in ARMS
        },
        "weights": [
            {site: entry["weight"] for site, entry in result.record["sites"].items()}
            for result in results["fedpref"][0]
        ],
    }


def selected_round(fedpref: Runs) -> int:
    """Return the common round of all arms, by FedPref's means over seeds (DESIGN 1.9)."""
    return _selected(_scores(fedpref))


def _selected(rows: Sequence[Json]) -> int:
    means = [row["client_mean"] for row in rows]
    if all(mean is None for mean in means):
        raise DataError(
            "no round has a client mean",
            why="no development report has a finding, in its annotation or in an answer",
            fix="give the sites development reports with findings",
        )
    return select_round(means, [row["worst_site"] for row in rows])


def _withheld(fedpref: Runs) -> list[str]:
    sites = sorted({site for run in fedpref for result in run for site in result.withheld})
    return [f"site {site} withholds its counts and is in no score of any arm" for site in sites]


def _other_pairs(results: Mapping[Arm, Runs]) -> list[str]:
    """Blank preference accuracies that are over other pairs than FedPref's, and say so."""
    expected = results["fedpref"][0][0].pairs.pairs
    notes = []
    for arm, runs in results.items():
        found = {result.pairs.pairs for run in runs for result in run}
        if found != {expected}:
            notes.append(
                f"arm {arm} was asked about {', '.join(map(str, sorted(found)))} held-out pairs, "
                f"FedPref about {expected} (a site with few pairs gives out nothing on them): its "
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


def _on_common_reports(results: Mapping[Arm, Runs], arm: Arm) -> list[list[RoundResult]]:
    """Return an arm's results on FedPref's reports; a site that withholds its counts is in none."""
    wanted = set(results["fedpref"][0][0].reports)
    kept: list[list[RoundResult]] = []
    for runs in results[arm]:
        kept.append([])
        for number, result in enumerate(runs):
            missing = wanted - result.reports.keys()
            if missing:
                raise DataError(
                    f"arm {arm} lacks {len(missing)} of FedPref's {len(wanted)} development "
                    f"reports in round {number}",
                    why="arms are compared on the same reports only",
                    fix="see which site gave no counts: fedpref summary of the run",
                )
            reports = {key: value for key, value in result.reports.items() if key in wanted}
            kept[-1].append(replace(result, reports=reports))
    return kept


def _exposure(results: Mapping[Arm, Runs]) -> Json:
    """Return how often each pair was trained on; DataError unless it is the same in every arm."""
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
        first = trained["fedpref", 0, 0]
        arm, number, t = next((k for k, v in trained.items() if v != first), ("fedpref", 0, 0))
        raise DataError(
            f"arm {arm} trained {trained[arm, number, t]} pairs in round {t}, FedPref {first} in "
            "round 0",
            why="every pair has one SFT and the same number of DPO exposures in each arm",
            fix="see which site was left out: fedpref summary of the run",
        )
    rounds = len(results["fedpref"][0])
    return {"pairs": trained["fedpref", 0, 0], "sft": 1, "dpo": rounds - 1}


def _scores(runs: Runs) -> list[Json]:
    """Return one entry a round: means over seeds, and each seed's own scores."""
    return [_round_scores([run[t] for run in runs]) for t in range(len(runs[0]))]


def _round_scores(seeds: Sequence[RoundResult]) -> Json:
    rows = [_seed_scores(result) for result in seeds]
    return {
        **{name: client_mean(row[name] for row in rows) for name in SCORES},
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
        "sites": dict(scores.sites),
        "disease_sites": {site: disease_f1(c) for site, c in counts.items()},
        "counts": (pooled(counts.values()) + result.pairs).to_dict(),
    }
