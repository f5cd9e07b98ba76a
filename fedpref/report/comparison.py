"""The tables of a comparison, in the shapes of the paper's Tables 1, 2 and 8. Pure."""

from collections.abc import Sequence
from statistics import stdev
from typing import Final

from fedpref.report.audit import audit_tables
from fedpref.report.common import config_table, versions_table, weights_table
from fedpref.report.result import (
    ArmDifference,
    ArmName,
    ArmRound,
    Comparison,
    Scores,
    Statistic,
)
from fedpref.report.tables import (
    CODE,
    COUNT,
    INTERVAL,
    MEGABYTES,
    PERCENT,
    POINTS,
    ROUND,
    SECONDS,
    SPREAD,
    TEXT,
    Column,
    Round,
    Spread,
    Table,
)
from fedpref.report.text import interval, points
from fedpref.report.trace import Said, trace_tables

ARM_TITLES: Final[dict[ArmName, str]] = {
    "central": "Central",
    "fedpref": "FedPref",
    "local": "Local",
}
STATISTIC_TITLES: Final[dict[Statistic, str]] = {
    "global": "Global F1",
    "client_mean": "Client-mean F1",
    "worst_site": "Worst-site F1",
}
# In sentences.
_SAID: Final[dict[Statistic, str]] = {
    "global": "pooled reports",
    "client_mean": "the client mean",
    "worst_site": "the worst site",
}
_HEADLINE: Final = (
    ("pooled", "Global F1"),
    ("client_mean", "Client-mean F1"),
    ("worst_site", "Worst-site F1"),
    ("preference_accuracy", "Preference accuracy"),
)
MEASURES: Final = (
    ("disease_client_mean", "Disease F1, client mean"),
    ("disease_pooled", "Disease F1, global"),
    ("projection_rate", "Projected"),
    ("strict_rate", "Strict"),
    ("truncation_rate", "Truncated"),
    ("false_positive_rate", "False positives"),
)
MEASURE_NOTE: Final = (
    "Projected: answers with a valid object. Strict: answers that are nothing else. Truncated: cut "
    "at the token limit. False positives: reports without any annotated disease for which at least "
    "one was predicted."
)

SPREAD_NOTE: Final = (
    "Spread over sites: the standard deviation of the sites' F1, divided by their number, taken "
    "per seed and then averaged. MB a run: both directions, 10⁶ bytes."
)


def arm_title(name: ArmName) -> str:
    """Return how an arm is called in tables; a strategy as it was named."""
    return ARM_TITLES.get(name, name)


def contrast_title(contrast: tuple[ArmName, ArmName]) -> str:
    """Return "FedPref − Local" for the arms' names."""
    a, b = contrast
    return f"{arm_title(a)} − {arm_title(b)}"


def spread(round_: ArmRound, name: str) -> Spread:
    """Return a score's mean over seeds as the file has it, and the seeds' sample deviation.

    Seeds without data are left out; there is no deviation of fewer than two values.
    """
    return spread_of(_score(round_, name), [_score(seed, name) for seed in round_.by_seed])


def spread_of(mean: float | None, values: Sequence[float | None]) -> Spread:
    """Return a mean over seeds with the sample deviation of the seeds' own values."""
    known = [value for value in values if value is not None]
    return Spread(mean, stdev(known) if len(known) > 1 else None)


def seeds_note(result: Comparison) -> str:
    """Return what the numbers of the arms are: means over seeds, or one seed's own."""
    if len(result.seeds) == 1:
        return f"One seed ({result.seeds[0]}): no spread between seeds is known."
    return f"Mean ± sample standard deviation over {len(result.seeds)} seeds; percent."


def findings(result: Comparison) -> tuple[str, ...]:
    """Return what came out at the selected round, a sentence an effect."""
    return tuple(
        effect_sentence(effect, f"On {_SAID[statistic]}")
        for contrast in result.contrasts
        for statistic in ("client_mean", "worst_site")
        if (effect := result.effect(contrast, result.selected_round, statistic)) is not None
    )


def effect_sentence(effect: ArmDifference, where: str) -> str:
    """Return what came out as a sentence that begins with `where`."""
    a, b = arm_title(effect.a), arm_title(effect.b)
    if effect.effect is None:
        why = f": {effect.degenerate}" if effect.degenerate else ""
        return f"{where}, {a} and {b} cannot be compared{why}."
    size = points(effect.effect).lstrip("+−")
    what = f"{a} is {size} points {'above' if effect.effect > 0 else 'below'} {b}"
    if size == "0.00":
        what = f"{a} and {b} are equal to two digits"
    if effect.low is None or effect.high is None:
        return f"{where}, {what} ({interval(effect)})."
    # As shown: a bound that is printed as 0.00 is not printed as being on one side of it.
    low, high = round(100 * effect.low, 2), round(100 * effect.high, 2)
    apart = "does not include 0" if low > 0 or high < 0 else "includes 0"
    return f"{where}, {what} (95 % interval {interval(effect)}, which {apart})."


def headline_table(result: Comparison) -> Table:
    """Return one row an arm at the selected round (the shape of Table 1), or one a strategy."""
    if result.of_strategies:
        return _strategies_table(result)
    return Table(
        name="headline",
        title=f"Development performance at round {result.selected_round}",
        caption=f"Loc+dis micro-F1 and preference accuracy. {seeds_note(result)}",
        columns=(
            Column("system", "System", TEXT),
            *(Column(key, title, SPREAD) for key, title in _HEADLINE),
        ),
        rows=_rows(result, [name for name, _ in _HEADLINE]),
    )


def _strategies_table(result: Comparison) -> Table:
    names = ("client_mean", "worst_site", "site_spread", "preference_accuracy")
    titles = {**dict(_HEADLINE), "site_spread": "Spread over sites"}
    at, runs = result.selected_round, len(result.seeds)
    same = {True: "the same", False: "others", None: "not recorded"}
    rows = [
        (
            arm_title(name),
            *(spread(arm.rounds[at], score) for score in names),
            (arm.bytes.down + arm.bytes.up) / runs,
            same[arm.strategy.same_roots if arm.strategy else None],
        )
        for name, arm in result.arms.items()
    ]
    first = arm_title(result.arm_names[0])
    return Table(
        name="headline",
        title=f"Strategies after the last round, {at}",
        caption=f"Loc+dis micro-F1 and preference accuracy. {seeds_note(result)}",
        columns=(
            Column("system", "Strategy", TEXT),
            *(Column(name, titles[name], SPREAD) for name in names),
            Column("bytes", "MB a run", MEGABYTES),
            Column("roots", "Site roots", TEXT),
        ),
        rows=tuple(rows),
        notes=(
            SPREAD_NOTE,
            "The last round is compared, whatever the scores are. Site roots: whether the sites "
            f"began with the very adapters of {first}, by their hashes.",
            "This is one partition: whether the order of the strategies recurs on others is "
            "another question.",
        ),
    )


def measures_table(result: Comparison) -> Table:
    """Return one row an arm at the selected round: the secondary measures."""
    return Table(
        name="measures",
        title=f"Further measures at round {result.selected_round}",
        caption=seeds_note(result),
        columns=(
            Column("system", "System", TEXT),
            *(Column(key, title, SPREAD) for key, title in MEASURES),
        ),
        rows=_rows(result, [name for name, _ in MEASURES]),
        notes=(MEASURE_NOTE,),
    )


def _rows(result: Comparison, names: Sequence[str]) -> tuple[tuple[object, ...], ...]:
    at = result.selected_round
    return tuple(
        (arm_title(arm), *(spread(result.arms[arm].rounds[at], name) for name in names))
        for arm in result.arm_names
    )


def effects_table(result: Comparison) -> Table:
    """Return one row a comparison and statistic at the selected round."""
    rows = [
        (contrast_title(contrast), title, effect, effect)
        for contrast in result.contrasts
        for statistic, title in STATISTIC_TITLES.items()
        if (effect := result.effect(contrast, result.selected_round, statistic))
    ]
    return Table(
        name="effects",
        title=f"Effects at round {result.selected_round}",
        caption="Differences in percentage points with 95 % intervals.",
        columns=(
            Column("comparison", "Comparison", TEXT),
            Column("statistic", "Statistic", TEXT),
            Column("effect", "Effect", POINTS),
            Column("interval", "95 % interval", INTERVAL),
        ),
        rows=tuple(rows),
        notes=(
            "Intervals: paired bootstrap that resamples patients, the same draws for both arms, "
            "averaged over the training seeds and conditional on them.",
        ),
    )


def effects_by_round_table(result: Comparison) -> Table:
    """Return one row a round and statistic: every comparison's effect and interval."""
    columns = [Column("round", "Round", ROUND), Column("statistic", "Statistic", TEXT)]
    for contrast in result.contrasts:
        key = f"{contrast[0]}_{contrast[1]}"
        columns += [
            Column(key, contrast_title(contrast), POINTS),
            Column(key, "95 % interval", INTERVAL),
        ]
    rows: list[tuple[object, ...]] = []
    strong = set[int]()
    for round_ in range(result.rounds + 1):
        for statistic, title in STATISTIC_TITLES.items():
            found = [result.effect(c, round_, statistic) for c in result.contrasts]
            if not any(found):
                continue
            if round_ == result.selected_round:
                strong.add(len(rows))
            cells = [cell for effect in found for cell in (effect, effect)]
            rows.append((_round(result, round_), title, *cells))
    return Table(
        name="effects-by-round",
        title="Effects by round",
        caption="Differences in percentage points with 95 % intervals.",
        columns=tuple(columns),
        rows=tuple(rows),
        strong=frozenset(strong),
    )


def trajectory_table(result: Comparison) -> Table:
    """Return one row a round and arm (the shape of Table 8)."""
    names = ("client_mean", "worst_site", "preference_accuracy")
    titles = dict(_HEADLINE)
    numbered = [(n, arm) for n in range(result.rounds + 1) for arm in result.arm_names]
    return Table(
        name="trajectories",
        title="Scores by round",
        caption=seeds_note(result),
        columns=(
            Column("round", "Round", ROUND),
            Column("system", "System", TEXT),
            *(Column(name, titles[name], SPREAD) for name in names),
        ),
        rows=tuple(
            (
                _round(result, number),
                arm_title(arm),
                *(spread(result.arms[arm].rounds[number], name) for name in names),
            )
            for number, arm in numbered
        ),
        strong=frozenset(
            row for row, (number, _) in enumerate(numbered) if number == result.selected_round
        ),
    )


def sites_table(result: Comparison) -> Table:
    """Return one row a site at the selected round: support, F1 of each arm, effects (Table 2)."""
    at = result.selected_round
    columns = [
        Column("site", "Site", TEXT),
        Column("pairs", "Pairs", COUNT),
        Column("dev_reports", "Dev reports", COUNT),
        Column("dev_pairs", "Dev pairs", COUNT),
        *(Column(arm, f"{arm_title(arm)} F1", PERCENT) for arm in result.arm_names),
    ]
    for contrast in result.contrasts:
        key = f"{contrast[0]}_{contrast[1]}"
        columns += [
            Column(key, contrast_title(contrast), POINTS),
            Column(key, "95 % interval", INTERVAL),
        ]
    rows = []
    for site, support in result.sites.items():
        effects = [result.effect(contrast, at, site) for contrast in result.contrasts]
        rows.append(
            (
                site,
                support.pairs,
                support.dev_reports,
                support.dev_pairs,
                *(result.arms[arm].rounds[at].sites.get(site) for arm in result.arm_names),
                *(cell for effect in effects for cell in (effect, effect)),
            )
        )
    return Table(
        name="sites",
        title=f"Sites at round {at}",
        caption="Support, loc+dis F1 of each arm (percent, mean over seeds), effects in points.",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=("Local is home-routed: each site is read with the adapter that it trained itself.",),
    )


def disease_sites_table(result: Comparison) -> Table:
    """Return one row a site at the selected round: the disease F1 of each arm."""
    at = result.selected_round
    return Table(
        name="sites-disease",
        title=f"Disease F1 by site at round {at}",
        caption="Percent, mean over seeds.",
        columns=(
            Column("site", "Site", TEXT),
            *(Column(arm, arm_title(arm), PERCENT) for arm in result.arm_names),
        ),
        rows=tuple(
            (
                site,
                *(result.arms[arm].rounds[at].disease_sites.get(site) for arm in result.arm_names),
            )
            for site in result.sites
        ),
    )


def costs_table(result: Comparison) -> Table:
    """Return one row an arm: training exposure, bytes in both directions, seconds."""
    rows = []
    for name in result.arm_names:
        arm = result.arms[name]
        used = arm.exposure
        rows.append(
            (
                arm_title(name),
                used.pairs,
                used.sft,
                used.dpo,
                arm.bytes.down,
                arm.bytes.up,
                arm.seconds,
            )
        )
    runs = "one run" if len(result.seeds) == 1 else f"{len(result.seeds)} runs, one a seed"
    return Table(
        name="costs",
        title="Exposure, traffic, time",
        caption=f"Bytes and seconds of an arm are sums over {runs}.",
        columns=(
            Column("system", "System", TEXT),
            Column("pairs", "Pairs", COUNT),
            Column("sft", "SFT epochs a pair", COUNT),
            Column("dpo", "DPO epochs a pair", COUNT),
            Column("down", "MB to sites", MEGABYTES),
            Column("up", "MB from sites", MEGABYTES),
            Column("time", "Seconds", SECONDS),
        ),
        rows=tuple(rows),
    )


def runs_table(result: Comparison) -> Table:
    """Return one row a run that the comparison is made of."""
    return Table(
        name="runs",
        title="Runs",
        columns=(
            Column("system", "System", TEXT),
            Column("seed", "Seed", CODE),
            Column("path", "Folder", CODE),
            Column("digest", "Configuration's hash", CODE),
        ),
        rows=tuple(
            (arm_title(run.arm), run.seed, run.path, run.digest[:12]) for run in result.runs
        ),
    )


def comparison_weights(result: Comparison) -> Table:
    """Return FedPref's aggregation weights, or each strategy's, a row a round."""
    weights = {name: said.weights for name, said in comparison_said(result).items()}
    return weights_table(weights, list(result.sites), of=_whose(result))


def comparison_said(result: Comparison) -> dict[str, Said]:
    """Return the weights, and what else the strategies said, of each arm's first run."""
    if not result.of_strategies:
        return {ARM_TITLES["fedpref"]: Said(result.trace, result.weights)}
    return {
        arm_title(name): Said(arm.trace, arm.weights)
        for name in result.arm_names
        for arm in [result.arms[name]]
    }


def _whose(result: Comparison) -> str:
    whose = "Each strategy's" if result.of_strategies else "FedPref's"
    return f"{whose} run with the first seed." if len(result.seeds) > 1 else f"{whose} run."


def comparison_tables(result: Comparison) -> dict[str, Table]:
    """Return all tables of the comparison by name; those without rows are left out."""
    tables = (
        headline_table(result),
        effects_table(result),
        measures_table(result),
        trajectory_table(result),
        effects_by_round_table(result),
        sites_table(result),
        disease_sites_table(result),
        *(audit_tables(result.audit) if result.audit else ()),
        comparison_weights(result),
        *trace_tables(comparison_said(result), list(result.sites), of=_whose(result)),
        costs_table(result),
        runs_table(result),
        config_table(result.config),
        versions_table(result.versions),
    )
    return {table.name: table for table in tables if table.rows}


def _round(result: Comparison, number: int) -> Round:
    return Round(number, number == result.selected_round)


def _score(scores: Scores, name: str) -> float | None:
    value: float | None = getattr(scores, name)
    return value
