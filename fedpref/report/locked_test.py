"""The locked test of a comparison: what `fedpref test` wrote beside it, as sentences and tables."""

from pathlib import Path
from typing import Final, Self

from pydantic import model_validator

from fedpref.errors import DataError
from fedpref.report.comparison import ARM_TITLES, contrast_title, effect_sentence, spread_of
from fedpref.report.result import (
    ArmDifference,
    ArmName,
    Comparison,
    Count,
    Part,
    Share,
    read_result,
)
from fedpref.report.tables import (
    CODE,
    INTERVAL,
    PERCENT,
    POINTS,
    SPREAD,
    TEXT,
    Column,
    Kind,
    Table,
)
from fedpref.report.text import NO_DATA, percent

LOCKED_TEST: Final = "test.json"

SHARE_OF: Final = Kind(
    lambda s: f"{percent(s.share)} of {s.whole:,}",
    lambda s: (*PERCENT.csv(s.share), str(s.part), str(s.whole)),
    ("_percent", "_reports", "_of_reports"),
)
SHARE_INTERVAL: Final = Kind(
    lambda s: NO_DATA if s.low is None else f"{percent(s.low)} to {percent(s.high)}",
    lambda s: (*PERCENT.csv(s.low), *PERCENT.csv(s.high)),
    ("_low_percent", "_high_percent"),
)

NOT_OPENED: Final = (
    "The locked test of this comparison has not been opened. “fedpref test” evaluates the selected "
    "round of FedPref and Central on the test reports, once and for good."
)


class ShareOf(Part):
    """`part` of `whole` reports, with Wilson's 95 % interval; no share without reports."""

    part: Count
    whole: Count
    share: Share | None
    low: Share | None
    high: Share | None


class SeedMeasures(Part):
    """The four measures of one trained policy."""

    location_disease_f1: Share | None
    disease_f1: Share | None
    projection_rate: ShareOf
    false_positive_rate: ShareOf


class PolicyMeasures(Part):
    """The four measures of a policy: means over seeds, and each seed's own."""

    location_disease_f1: Share | None
    disease_f1: Share | None
    projection_rate: Share | None
    false_positive_rate: Share | None
    by_seed: tuple[SeedMeasures, ...]


class Duplicates(Part):
    """Texts that occur more than once, and those whose annotations contradict each other."""

    groups: Count
    reports: Count
    conflicting_groups: Count
    conflicting_reports: Count


class Attempt(Part):
    """An earlier attempt on the same test set that was set aside."""

    file: str
    created: str | None
    had_result: bool


class LockedTest(Part):
    """`test.json`, as `fedpref test` writes it."""

    round: Count
    seeds: tuple[int, ...]
    synthetic: bool
    reports: Count
    patients: Count
    policies: dict[ArmName, PolicyMeasures]
    effect: ArmDifference
    draws: Count
    duplicates: Duplicates
    earlier: tuple[Attempt, ...] = ()

    @model_validator(mode="after")
    def _measures_a_seed(self) -> Self:
        for name, policy in self.policies.items():
            if len(policy.by_seed) != len(self.seeds):
                raise ValueError(
                    f"{name} has measures of {len(policy.by_seed)} seeds, not {len(self.seeds)}"
                )
        return self


def load_locked_test(folder: Path, comparison: Comparison) -> LockedTest | None:
    """Return the locked test in the folder of a comparison, None before it was opened.

    DataError if the file is malformed, or is of another round or other seeds.
    """
    path = folder / LOCKED_TEST
    if not path.exists():
        return None
    test = read_result(path, LockedTest)
    for what, found, expected in (
        ("round", test.round, comparison.selected_round),
        ("seeds", test.seeds, comparison.seeds),
    ):
        if found != expected:
            raise DataError(
                f"the {what} of the locked test: {found}, of the comparison: {expected}",
                why="the two are not of one comparison",
                fix="restore the files that fedpref wrote; the lock among the sites holds the "
                "result of the test",
                file=path,
            )
    return test


def locked_test_sentences(test: LockedTest | None) -> tuple[str, ...]:
    """Return what came out of the locked test, or that it has not been opened."""
    if test is None:
        return (NOT_OPENED,)
    return (
        effect_sentence(test.effect, "On the locked test"),
        _duplicates_sentence(test.duplicates),
        *map(_attempt_sentence, test.earlier),
    )


def locked_test_tables(test: LockedTest) -> dict[str, Table]:
    """Return the measures of both policies, the effect, each seed's measures, duplicate texts."""
    tables = (_measures(test), _effect(test), _by_seed(test))
    return {table.name: table for table in tables}


def _measures(test: LockedTest) -> Table:
    spread = "" if len(test.seeds) < 2 else " ± sample standard deviation"
    return Table(
        name="locked-test",
        title=f"Locked test at round {test.round}",
        caption=f"{test.reports:,} test reports of {test.patients:,} patients. Mean{spread} over "
        f"{len(test.seeds)} seed{'s' * (len(test.seeds) > 1)}; percent.",
        columns=(
            Column("system", "System", TEXT),
            Column("location_disease_f1", "Loc+dis F1", SPREAD),
            Column("disease_f1", "Disease F1", SPREAD),
            Column("projection_rate", "Projected", SPREAD),
            Column("false_positive_rate", "False positives", SPREAD),
        ),
        rows=tuple(
            (
                ARM_TITLES[arm],
                spread_of(policy.location_disease_f1, [s.location_disease_f1 for s in seeds]),
                spread_of(policy.disease_f1, [s.disease_f1 for s in seeds]),
                spread_of(policy.projection_rate, [s.projection_rate.share for s in seeds]),
                spread_of(policy.false_positive_rate, [s.false_positive_rate.share for s in seeds]),
            )
            for arm, policy in _policies(test)
            for seeds in [policy.by_seed]
        ),
    )


def _effect(test: LockedTest) -> Table:
    return Table(
        name="locked-test-effect",
        title="Effect on the locked test",
        caption="Difference in loc+dis F1 of all test reports, in percentage points.",
        columns=(
            Column("comparison", "Comparison", TEXT),
            Column("effect", "Effect", POINTS),
            Column("interval", "95 % interval", INTERVAL),
        ),
        rows=((contrast_title((test.effect.a, test.effect.b)), test.effect, test.effect),),
        notes=(
            f"Interval: paired bootstrap, {test.draws:,} draws of patients of the whole test set, "
            "without sites; the same draws for both, averaged over the training seeds.",
        ),
    )


def _by_seed(test: LockedTest) -> Table:
    shares = (("projection_rate", "Projected"), ("false_positive_rate", "False positives"))
    return Table(
        name="locked-test-seeds",
        title="Locked test by seed",
        caption="Percent; of how many reports; Wilson's 95 % intervals of shares of reports.",
        columns=(
            Column("seed", "Seed", CODE),
            Column("system", "System", TEXT),
            Column("location_disease_f1", "Loc+dis F1", PERCENT),
            Column("disease_f1", "Disease F1", PERCENT),
            *(
                column
                for key, title in shares
                for column in (
                    Column(key, title, SHARE_OF),
                    Column(key, "95 % interval", SHARE_INTERVAL),
                )
            ),
        ),
        rows=tuple(
            (
                seed,
                ARM_TITLES[arm],
                found.location_disease_f1,
                found.disease_f1,
                *(share for key, _ in shares for share in [getattr(found, key)] * 2),
            )
            for number, seed in enumerate(test.seeds)
            for arm, policy in _policies(test)
            for found in [policy.by_seed[number]]
        ),
    )


def _policies(test: LockedTest) -> list[tuple[ArmName, PolicyMeasures]]:
    return [(arm, test.policies[arm]) for arm in ARM_TITLES if arm in test.policies]


def _duplicates_sentence(twice: Duplicates) -> str:
    if not twice.groups:
        return "No text occurs more than once among the test reports."
    return (
        f"Texts that occur more than once among the test reports: {twice.groups:,} "
        f"({twice.reports:,} reports). Of these, {twice.conflicting_groups:,} "
        f"({twice.conflicting_reports:,} reports) have annotations that contradict each other, so "
        "that no answer can be right for all of them."
    )


def _attempt_sentence(attempt: Attempt) -> str:
    came = "with a result" if attempt.had_result else "without a result"
    return (
        f"An earlier attempt on this test set, {came}, was set aside: {attempt.file}, "
        f"{attempt.created or 'time unknown'}."
    )
