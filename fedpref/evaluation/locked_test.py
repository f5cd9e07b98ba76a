"""The locked test: the selected FedPref and Central policies, once, on the test split. Pure.

Four measures of each policy, the paired interval of Central − FedPref, and what can be said of the
test set without naming a report. The lock itself is in `lock`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

from fedpref.data import Annotation, Report, SiteDirectory
from fedpref.data.text import duplicate_key
from fedpref.errors import ConfigError, DataError
from fedpref.evaluation.bootstrap import Effect, counts_array, paired_cluster_bootstrap
from fedpref.evaluation.metrics import (
    EvaluationCounts,
    client_mean,
    disease_f1,
    false_positive_rate,
    location_disease_f1,
    pooled,
    projection_rate,
    report_counts,
    wilson_interval,
)
from fedpref.hashing import digest
from fedpref.task import Ignore, Projection, match_counts

CENTRAL, FEDPREF = "central", "fedpref"
DRAWS: Final = 10_000
_AGAIN: Final = "restore the site directories and the prediction files as they were"

# The counts of each report of one trained policy, by `Case.key`.
PolicyCounts = Mapping[str, EvaluationCounts]


@dataclass(frozen=True, repr=False)
class Case:
    """A report of the test split with its annotation and the site that holds it."""

    site: str
    report: Report
    annotation: Annotation

    @property
    def key(self) -> str:
        """Return the name by which counts are matched; never printed."""
        return f"{self.site}/{self.report.report_id}"

    def __repr__(self) -> str:
        return "Case()"


@dataclass(frozen=True)
class Share:
    """A share `part` / `whole` with Wilson's 95 % interval; all three None without data."""

    part: int
    whole: int
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Measures:
    """The four measures of one trained policy: pooled micro-F1s, and two shares of reports."""

    location_disease_f1: float | None
    disease_f1: float | None
    projection_rate: Share
    false_positive_rate: Share


@dataclass(frozen=True)
class Duplicates:
    """Test reports whose texts are equal after `duplicate_key`.

    `groups` texts occur more than once, in `reports` reports. In `conflicting_groups` of them two
    annotations contradict each other, beyond what either leaves undecided: no answer can be right
    for both. `conflicting_reports` is the size of these groups together.
    """

    groups: int
    reports: int
    conflicting_groups: int
    conflicting_reports: int


@dataclass(frozen=True)
class LockedResult:
    """The result of a locked test. Measures are by policy, one entry a training seed.

    `effect` is Central − FedPref in pooled findings micro-F1, averaged over seeds.
    """

    test_hash: str
    reports: int
    patients: int
    measures: Mapping[str, Sequence[Measures]]
    effect: Effect
    draws: int
    bootstrap_seed: int
    duplicates: Duplicates

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON value; each policy's four measures are means over seeds."""
        return {
            "test": self.test_hash,
            "reports": self.reports,
            "patients": self.patients,
            "policies": {
                name: {
                    "location_disease_f1": client_mean(m.location_disease_f1 for m in seeds),
                    "disease_f1": client_mean(m.disease_f1 for m in seeds),
                    "projection_rate": client_mean(m.projection_rate.share for m in seeds),
                    "false_positive_rate": client_mean(m.false_positive_rate.share for m in seeds),
                    "by_seed": [asdict(m) for m in seeds],
                }
                for name, seeds in self.measures.items()
            },
            "effect": {"a": CENTRAL, "b": FEDPREF, "statistic": "global", **asdict(self.effect)},
            "draws": self.draws,
            "bootstrap_seed": self.bootstrap_seed,
            "duplicates": asdict(self.duplicates),
        }


def held_out_cases(sites: Sequence[SiteDirectory]) -> list[Case]:
    """Return the test split of all sites, sorted by site, then in file order.

    Raises ConfigError if it is empty: nothing would be locked and nothing shown.
    """
    cases = [
        Case(site.name, report, site.annotations[report.report_id])
        for site in sorted(sites, key=lambda site: site.name)
        for report in site.split("test")
    ]
    if not cases:
        raise ConfigError(
            f"the test split of the {len(sites)} sites is empty",
            why="the locked test needs reports that no choice was made on",
            fix='give reports the split "test" before training, or go without a locked test',
            key="sites",
        )
    return cases


def cases_digest(cases: Sequence[Case]) -> str:
    """Return the hash of a test set: its texts and annotations, in any order.

    Ids, sites, case and punctuation are left out, so that neither renaming nor another partition
    makes the same reports a new test set. A part of a test set is another test set.
    """
    return digest(
        sorted(
            digest({"text": duplicate_key(case.report.text), "annotation": _content(case)})
            for case in cases
        )
    )


def duplicates(cases: Sequence[Case]) -> Duplicates:
    """Return how many test texts occur more than once, and how many of them contradict."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[duplicate_key(case.report.text)].append(case)
    repeated = [group for group in groups.values() if len(group) > 1]
    conflicting = [group for group in repeated if _conflict(group)]
    return Duplicates(
        groups=len(repeated),
        reports=sum(map(len, repeated)),
        conflicting_groups=len(conflicting),
        conflicting_reports=sum(map(len, conflicting)),
    )


def measures(counts: EvaluationCounts) -> Measures:
    """Return the four measures of one trained policy from its counts over the whole test set."""
    return Measures(
        location_disease_f1=location_disease_f1(counts),
        disease_f1=disease_f1(counts),
        projection_rate=_share(counts.projected, counts.reports, projection_rate(counts)),
        false_positive_rate=_share(
            counts.empty_with_prediction, counts.empty_targets, false_positive_rate(counts)
        ),
    )


def locked_result(
    cases: Sequence[Case],
    *,
    fedpref: Sequence[PolicyCounts],
    central: Sequence[PolicyCounts],
    draws: int = DRAWS,
    seed: int = 0,
) -> LockedResult:
    """Return the result of both policies, each given as one mapping of counts a training seed.

    The interval resamples patients of the whole test set, without sites; equal patient ids are one
    patient. Raises DataError if a policy's counts are of other reports than `cases`, are no single
    report's, or were made against other annotations, and ConfigError if the seeds differ in number.
    """
    if len(fedpref) != len(central) or not fedpref:
        raise ConfigError(
            f"{len(fedpref)} seeds of fedpref and {len(central)} of central were evaluated",
            why="the interval is paired by seed",
            fix="evaluate both policies with the same seeds",
        )
    keys = [case.key for case in cases]
    policies = {FEDPREF: fedpref, CENTRAL: central}
    for name, runs in policies.items():
        for run in runs:
            _check(name, cases, run)
    arrays = {
        name: counts_array([{k: (c.tp, c.fp, c.fn) for k, c in run.items()} for run in runs], keys)
        for name, runs in policies.items()
    }
    effect = paired_cluster_bootstrap(
        arrays[CENTRAL],
        arrays[FEDPREF],
        [case.site for case in cases],
        [case.report.patient_id for case in cases],
        statistic="global",
        draws=draws,
        seed=seed,
    )
    return LockedResult(
        test_hash=cases_digest(cases),
        reports=len(cases),
        patients=len({case.report.patient_id for case in cases}),
        measures={
            name: tuple(measures(pooled(run.values())) for run in runs)
            for name, runs in policies.items()
        },
        effect=effect,
        draws=draws,
        bootstrap_seed=seed,
        duplicates=duplicates(cases),
    )


def _check(policy: str, cases: Sequence[Case], run: PolicyCounts) -> None:
    """Raise DataError unless the counts can be those of answers to these reports."""
    keys = {case.key for case in cases}
    if run.keys() != keys or len(keys) != len(cases):
        raise DataError(
            f"{policy} was evaluated on {len(run)} reports, {len(run.keys() - keys)} of them none "
            f"of the {len(cases)} in the test split",
            why="both policies are compared on the whole test split",
            fix=_AGAIN,
        )
    found = {case.key: _target(run[case.key]) for case in cases}
    expected = {case.key: _target(_perfect(case)) for case in cases}
    wrong = sum(found[key] != expected[key] for key in keys)
    if wrong:
        # Sums over the whole test set: those of one report would tell its annotation.
        sums = [[sum(part) for part in zip(*side.values(), strict=True)]
                for side in (found, expected)]  # fmt: skip
        raise DataError(
            f"{wrong} predictions of {policy} do not fit their reports: reports, findings, "
            f"diseases and empty targets add up to {sums[0]}, and to {sums[1]} in the annotations",
            why="a prediction file was edited, or the annotations changed after the evaluation",
            fix=_AGAIN,
        )


def _target(counts: EvaluationCounts) -> tuple[int, int, int, int]:
    """Return what the counts say of the annotation alone."""
    return (
        counts.reports,
        counts.tp + counts.fn,
        counts.disease_tp + counts.disease_fn,
        counts.empty_targets,
    )


def _perfect(case: Case) -> EvaluationCounts:
    """Return the counts of an answer that says what the annotation says."""
    target = case.annotation.structure
    return report_counts(
        Projection(target, True, True, None), target, case.annotation.ignore, truncated=False
    )


def _conflict(group: Sequence[Case]) -> bool:
    distinct = {digest(_content(case)): case.annotation for case in group}
    for one, other in combinations(distinct.values(), 2):
        undecided = Ignore(
            one.ignore.diseases | other.ignore.diseases,
            one.ignore.locations_of | other.ignore.locations_of,
        )
        match = match_counts(one.structure, other.structure, undecided)
        if match.fp + match.fn + match.disease_fp + match.disease_fn:
            return True
    return False


def _content(case: Case) -> dict[str, Any]:
    """Return the annotation without the report's id."""
    row = case.annotation.to_row()
    del row["report_id"]
    return row


def _share(part: int, whole: int, share: float | None) -> Share:
    interval = wilson_interval(part, whole)
    low, high = (None, None) if interval is None else interval
    return Share(part, whole, share, low, high)
