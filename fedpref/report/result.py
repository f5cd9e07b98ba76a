"""What a report reads: `comparison.json`, or `summary.json` and `config.json` of a run.

Both are checked when they are read: a report never shows a number that the file does not hold, and
a file that lacks one is refused by the place in it.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpref.errors import DataError, RoundError

COMPARISON: Final = "comparison.json"
SUMMARY: Final = "summary.json"
CONFIG: Final = "config.json"

# The paper's, or a strategy as it was named: "feddraw(eta=2)".
ArmName = str
# The order of the paper's tables.
ARMS: Final[tuple[ArmName, ...]] = ("central", "fedpref", "local")
Statistic = Literal["client_mean", "worst_site", "global"]
Count = Annotated[int, Field(ge=0)]
# A mean of shares may be above 1 by a rounding error.
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
Interval = tuple[float, float]
# What a strategy says of a round besides its weights: a number, one a site, or other numbers.
Traced = float | dict[str, float | None] | tuple[float | None, ...] | None


class Part(BaseModel):
    """Base of all parts of a result; unknown keys are left to newer writers."""

    model_config = ConfigDict(
        frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Scores(Part):
    """One round's scores as shares, None where there is no data."""

    client_mean: Share | None
    worst_site: Share | None
    pooled: Share | None
    disease_client_mean: Share | None
    disease_pooled: Share | None
    projection_rate: Share | None
    strict_rate: Share | None
    truncation_rate: Share | None
    false_positive_rate: Share | None
    preference_accuracy: Share | None


class SiteScores(Scores):
    """One round's scores with the loc+dis and disease F1 of each site."""

    sites: dict[str, Share | None]
    disease_sites: dict[str, Share | None] = {}
    # The standard deviation of `sites`.
    site_spread: Share | None = None


class ArmRound(SiteScores):
    """One round of one arm: means over seeds, and each seed's own scores."""

    by_seed: tuple[SiteScores, ...]


class Exposure(Part):
    """How often each pair was trained on: distinct pairs, SFT epochs, DPO epochs."""

    pairs: Count
    sft: Count
    dpo: Count


class Traffic(Part):
    """Bytes between coordinator and sites: down to the sites, up from them."""

    down: Count
    up: Count


class StrategyOf(Part):
    """The strategy of an arm, and whether its site roots are those of the first arm.

    `same_roots` is null where a run did not record what the sites sent.
    """

    strategy: str
    options: str
    same_roots: bool | None


class Arm(Part):
    """One arm of a comparison, over all its seeds; `weights` are those of the first seed's run."""

    rounds: tuple[ArmRound, ...]
    exposure: Exposure
    bytes: Traffic
    seconds: float
    strategy: StrategyOf | None = None
    weights: tuple[dict[str, float | None], ...] = ()
    trace: tuple[dict[str, Traced], ...] = ()


class Difference(Part):
    """A difference of two F1s with its 95 % interval.

    `degenerate` says why there is no interval; `low` and `high` are then None.
    """

    effect: float | None
    low: float | None
    high: float | None
    degenerate: str | None


class ArmDifference(Difference):
    """The difference a − b of two arms."""

    a: ArmName
    b: ArmName


class Effect(ArmDifference):
    """The difference of two arms in one statistic, or in one site's F1, at a round."""

    round: Count
    statistic: Statistic | None = None
    site: str | None = None

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if (self.statistic is None) == (self.site is None):
            raise ValueError("an effect is of a statistic or of a site")
        return self


class ArmIntervals(Part):
    """95 % intervals of one arm's round; None where there is none."""

    client_mean: Interval | None = None
    worst_site: Interval | None = None


class Support(Part):
    """What one site brings: retained pairs, dev reports, dev pairs."""

    pairs: Count | None
    dev_reports: Count | None = None
    dev_pairs: Count | None = None


class TrainingRun(Part):
    """One of the runs that a comparison is made of."""

    arm: ArmName
    seed: int
    path: str
    digest: str


class AuditCohort(Part):
    """One cohort of the non-IID audit, as `fedpref.evaluation.noniid` writes it."""

    cohort: str
    rows: Count
    sizes: dict[str, Count | None]
    prevalence: dict[str, tuple[Share | None, ...] | None]
    overall: tuple[Share | None, ...]
    divergence: float | None
    divergence_labels: Count
    null_95: float | None
    ratio: float | None
    p_value: float | None


class AuditSupport(Part):
    """What one site brings to the audit: reports, those with any disease, reports with a pair."""

    site: str
    train_reports: Count | None
    train_reports_positive: Count | None
    train_pairs: Count | None
    dev_reports: Count | None
    dev_reports_positive: Count | None
    dev_pairs: Count | None


class Audit(Part):
    """The non-IID audit, as `fedpref audit --json` prints it."""

    mode: Literal["simulation", "deployment"]
    labels: tuple[str, ...]
    sites: tuple[str, ...]
    permutations: int | None
    support: tuple[AuditSupport, ...] = ()
    cohorts: tuple[AuditCohort, ...]

    @model_validator(mode="after")
    def _a_share_a_label(self) -> Self:
        for cohort in self.cohorts:
            for shares in (cohort.overall, *cohort.prevalence.values()):
                if shares is not None and len(shares) != len(self.labels):
                    raise ValueError(f"{cohort.cohort} has {len(shares)} shares of a row")
        return self


class Comparison(Part):
    """`comparison.json`: three arms or several strategies, their effects, and what they cost.

    `weights` and `trace` are FedPref's; a strategy's stand with its arm.
    """

    kind: Literal["comparison"]
    run: str
    synthetic: bool
    digest: str
    config: dict[str, bool | int | float | str]
    seeds: tuple[int, ...] = Field(min_length=1)
    rounds: Count
    selected_round: Count
    notes: tuple[str, ...] = ()
    sites: dict[str, Support]
    arms: dict[ArmName, Arm] = Field(min_length=1)
    effects: tuple[Effect, ...]
    trajectory_intervals: dict[ArmName, tuple[ArmIntervals | None, ...]] = {}
    weights: tuple[dict[str, float | None], ...] = ()
    trace: tuple[dict[str, Traced], ...] = ()
    audit: Audit | None = None
    runs: tuple[TrainingRun, ...] = ()
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        last = self.rounds
        if self.selected_round > last:
            raise ValueError(f"selected_round {self.selected_round} is after the last, {last}")
        for name, arm in self.arms.items():
            if len(arm.rounds) != last + 1:
                raise ValueError(f"{name} has {len(arm.rounds)} rounds, not 0 to {last}")
            for number, round_ in enumerate(arm.rounds):
                if len(round_.by_seed) != len(self.seeds):
                    raise ValueError(
                        f"{name}, round {number}: scores of {len(round_.by_seed)} seeds, "
                        f"not {len(self.seeds)}"
                    )
        named = {name for effect in self.effects for name in (effect.a, effect.b)}
        named |= {*self.trajectory_intervals, *(run.arm for run in self.runs)}
        if strange := sorted(named - self.arms.keys()):
            raise ValueError(f"there is no arm {strange[0]}")
        for name, intervals in self.trajectory_intervals.items():
            if len(intervals) != last + 1:
                raise ValueError(f"{name} has intervals of {len(intervals)} rounds")
        return self

    @property
    def arm_names(self) -> tuple[ArmName, ...]:
        """Return the arms in the order of the tables; strategies as they were named."""
        return tuple(self.arms) if self.of_strategies else tuple(a for a in ARMS if a in self.arms)

    @property
    def of_strategies(self) -> bool:
        """Return whether the arms are strategies, and not the paper's three."""
        return not self.arms.keys() <= set(ARMS)

    @property
    def can_be_tested(self) -> bool:
        """Return whether the arms of the locked test are there."""
        return {"fedpref", "central"} <= self.arms.keys()

    @property
    def contrasts(self) -> tuple[tuple[ArmName, ArmName], ...]:
        """Return the pairs of arms (a, b) that have effects, in their order in the file."""
        return tuple(dict.fromkeys((effect.a, effect.b) for effect in self.effects))

    @property
    def has_site_effects(self) -> bool:
        """Return whether there are effects of single sites at the selected round."""
        return any(e.site is not None and e.round == self.selected_round for e in self.effects)

    def effect(self, contrast: tuple[str, str], round_: int, subject: str) -> Effect | None:
        """Return the effect of a statistic or a site at a round; None if the file has none."""
        for effect in self.effects:
            found = (effect.a, effect.b), effect.round, effect.statistic or effect.site
            if found == (contrast, round_, subject):
                return effect
        return None


class RunSite(Part):
    """One site in one round of a run."""

    pairs: Count | None
    weight: float | None
    seconds: float | None
    location_disease_f1: Share | None
    disease_f1: Share | None
    counts: dict[str, int] | None
    no_counts_because: str | None


class RunTraffic(Traffic):
    """A round's bytes, in all and of its two halves."""

    training: Traffic
    evaluation: Traffic


class RunSeconds(Part):
    """A round's seconds."""

    training: float
    evaluation: float
    total: float


class Refused(Part):
    """The sites left out of each half of a round, and why."""

    training: dict[str, str]
    evaluation: dict[str, str]


class RunRound(Scores):
    """One closed round of a run."""

    round: Count
    stage: str
    sites: dict[str, RunSite]
    refused: Refused
    strategy: dict[str, Traced] = {}
    bytes: RunTraffic
    seconds: RunSeconds


class Run(Part):
    """`summary.json`: one run, round by round."""

    run: str
    federation: str
    digest: str
    strategy: str
    synthetic: bool
    sites: dict[str, int]
    versions: dict[str, str]
    bytes: Traffic
    seconds: float
    rounds: tuple[RunRound, ...] = Field(min_length=1)

    @property
    def weights(self) -> tuple[dict[str, float | None], ...]:
        """Return the sites' aggregation weights, a mapping a round."""
        return tuple({site: e.weight for site, e in r.sites.items()} for r in self.rounds)


class RunConfigFile(Part):
    """`config.json`: the effective configuration."""

    config: dict[str, bool | int | float | str]
    digest: str


class _Completion(Part):
    complete: bool = False


Model = TypeVar("Model", bound=Part)


def load_comparison(folder: Path) -> Comparison:
    """Return the comparison in a folder; RoundError if there is none or it is not complete."""
    path = folder / COMPARISON
    if not path.exists():
        raise RoundError(
            "there is no comparison to read",
            fix="name the folder of a complete comparison, as runs/compare-… (fedpref compare)",
            file=path,
        )
    return _load(path, Comparison, resume="fedpref compare")


def load_result(run_dir: Path) -> Comparison | tuple[Run, RunConfigFile]:
    """Return the comparison in a folder or else the run with its configuration.

    RoundError if there is neither or it is not complete, DataError if a file is malformed.
    """
    if (run_dir / COMPARISON).exists():
        return load_comparison(run_dir)
    summary = run_dir / SUMMARY
    if not summary.exists():
        known = run_dir.is_dir()
        raise RoundError(
            "there is nothing to report" if known else "there is no such folder",
            why=f"it holds neither {COMPARISON} nor {SUMMARY}" if known else "",
            fix="name the folder of a complete run or comparison, such as runs/<id>",
            file=run_dir,
        )
    run = _load(summary, Run, resume="fedpref run --set resume=…")
    config = read_result(run_dir / CONFIG, RunConfigFile)
    if config.digest != run.digest:
        raise DataError(
            f"the digest is {config.digest[:12]}, that of {SUMMARY} is {run.digest[:12]}",
            why="the two files are not of one run",
            fix="restore the files that the run wrote",
            file=run_dir / CONFIG,
        )
    return run, config


def _load(path: Path, kind: type[Model], *, resume: str) -> Model:
    if not read_result(path, _Completion).complete:
        raise RoundError("it is not complete", fix=f"resume it: {resume}", file=path)
    return read_result(path, kind)


def read_result(path: Path, kind: type[Model]) -> Model:
    """Return the checked content of a JSON file; DataError names the first bad places in it."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"the file cannot be read ({error.strerror})",
            fix="restore the file that the run wrote",
            file=path,
        ) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [
            f"{'.'.join(str(part) for part in item['loc']) or 'the file'}: {item['msg']}"
            for item in found[:3]
        ]
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise DataError(
            "; ".join(places) + more,
            why="a report shows only what the file holds",
            fix="write the file anew with this version of fedpref",
            file=path,
        ) from None
