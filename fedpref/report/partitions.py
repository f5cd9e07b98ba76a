"""Arms over several partitions of the data: `partitions.json`, what it says, its tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from fedpref.errors import RoundError
from fedpref.report.comparison import SPREAD_NOTE, arm_title, contrast_title
from fedpref.report.result import (
    ArmName,
    Comparison,
    Count,
    Part,
    Share,
    load_comparison,
    read_result,
)
from fedpref.report.tables import (
    CODE,
    COUNT,
    INTERVAL,
    MEGABYTES,
    PERCENT,
    POINTS,
    TEXT,
    Column,
    Kind,
    Table,
    fixed,
)
from fedpref.report.text import percent

PARTITIONS: Final = "partitions.json"
# Demšar (JMLR 7, 2006): the chi-square approximation is good above both.
_ENOUGH_PARTITIONS, _ENOUGH_ARMS = 10, 5
RankedBy = Literal["client_mean", "worst_site"]
SCORES: Final[dict[RankedBy, str]] = {"client_mean": "client mean", "worst_site": "worst site"}


class RankedPartition(Part):
    """One partition's scores and ranks by arm; no ranks if an arm has no score."""

    comparison: str
    scores: dict[ArmName, Share | None]
    ranks: dict[ArmName, float] | None
    left_out: str | None


class FriedmanTest(Part):
    """Friedman's test; `least_p` is the lowest p-value that so few ranks could give."""

    statistic: float
    degrees: Count
    p_value: float
    least_p: float


class NemenyiPair(Part):
    """The difference of two arms' average ranks, a − b."""

    a: ArmName
    b: ArmName
    difference: float
    p_value: float


class NemenyiTest(Part):
    """Average ranks further apart than the critical difference differ at level alpha."""

    alpha: float
    critical_difference: float
    pairs: tuple[NemenyiPair, ...]


class Apart(Part):
    """Two arms by their average ranks; `differ`: both tests find them different."""

    ahead: ArmName
    behind: ArmName
    ranks: float
    p_value: float
    differ: bool


class Ranking(Part):
    """Ranks by one score with both tests; `degenerate` says why there are none."""

    partitions: tuple[RankedPartition, ...]
    ranked_partitions: Count
    average_ranks: dict[ArmName, float] | None
    friedman: FriedmanTest | None
    nemenyi: NemenyiTest | None
    degenerate: str | None

    def apart(self) -> tuple[Apart, ...]:
        """Return every pair of arms; a difference counts only where Friedman's test finds any."""
        if self.friedman is None or self.nemenyi is None:
            return ()
        alpha = self.nemenyi.alpha
        found = self.friedman.p_value < alpha
        return tuple(
            Apart(
                ahead=pair.a if pair.difference <= 0 else pair.b,
                behind=pair.b if pair.difference <= 0 else pair.a,
                ranks=abs(pair.difference),
                p_value=pair.p_value,
                differ=found and pair.p_value < alpha,
            )
            for pair in self.nemenyi.pairs
        )


class ArmMeans(Part):
    """An arm's means over partitions; `bytes` are one run's."""

    client_mean: Share | None
    worst_site: Share | None
    site_spread: Share | None
    bytes: float


class PartitionOf(Part):
    """Where one partition's comparison lies, and the folder of its sites."""

    path: str
    sites: str
    selected_round: Count


class Partitions(Part):
    """`partitions.json`: the same arms over several partitions, ranked."""

    kind: Literal["partitions"]
    run: str
    synthetic: bool
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()
    partitions: tuple[PartitionOf, ...]
    arms: dict[ArmName, ArmMeans]
    rankings: dict[RankedBy, Ranking]


Comparisons = Mapping[str, Comparison]


def load_partitions(folder: Path) -> tuple[Partitions, Comparisons] | None:
    """Return `partitions.json` and the comparisons by their folders; None if there is no such file.

    Raises RoundError or DataError if a file is missing or malformed.
    """
    path = folder / PARTITIONS
    if not path.exists():
        return None
    found = read_result(path, Partitions)
    comparisons = {part.path: load_comparison(folder / part.path) for part in found.partitions}
    for name, comparison in comparisons.items():
        if set(comparison.arms) != set(found.arms):
            raise RoundError(
                f"{name} has other arms than the ranking",
                fix="compare again: fedpref compare",
                file=path,
            )
    return found, comparisons


def reads_of_few(ranking: Ranking) -> tuple[str, ...]:
    """Return what must be said of a test over few partitions or arms."""
    test, arms = ranking.friedman, len(ranking.average_ranks or ())
    if test is None or ranking.nemenyi is None:
        return ()
    count, alpha = ranking.ranked_partitions, ranking.nemenyi.alpha
    said = []
    if test.least_p >= alpha:
        said.append(
            f"{count} partitions are too few: even if all of them ranked the {arms} arms alike, p "
            f"would be {p_value(test.least_p)}"
        )
    elif count <= _ENOUGH_PARTITIONS or arms <= _ENOUGH_ARMS:
        said.append(
            f"p-values are approximate; they are good above {_ENOUGH_PARTITIONS} partitions and "
            f"{_ENOUGH_ARMS} arms"
        )
    return tuple(said)


def p_value(value: float) -> str:
    """Return a p-value with four digits."""
    return "<0.0001" if value < 0.00005 else f"{value:.4f}"


def ranking_sentences(ranking: Ranking, score: str) -> tuple[str, ...]:
    """Return who is ahead by a score, and what the tests say of it."""
    said = []
    if ranking.average_ranks:
        best = min(ranking.average_ranks.values())
        ahead = [arm_title(arm) for arm, rank in ranking.average_ranks.items() if rank == best]
        said.append(
            f"On the {score}, the best average rank over {ranking.ranked_partitions} partitions is "
            f"{best:.2f} of {len(ranking.average_ranks)}: {', '.join(ahead)}."
        )
    if ranking.degenerate:
        return (*said, f"On the {score}, there is no test: {ranking.degenerate}.")
    assert ranking.friedman is not None
    assert ranking.nemenyi is not None
    test, alpha = ranking.friedman, ranking.nemenyi.alpha
    found = test.p_value < alpha
    apart = [
        f"{arm_title(pair.ahead)} and {arm_title(pair.behind)}"
        for pair in ranking.apart()
        if pair.differ
    ]
    at_best = f"; so few partitions could not give less than {p_value(test.least_p)}"
    said.append(
        f"On the {score}, Friedman's test finds {'a' if found else 'no'} difference at {alpha:g} "
        f"(p {p_value(test.p_value)}{at_best if test.least_p >= alpha else ''})"
        + (
            f"; by Nemenyi's test, these differ: {', '.join(apart)}."
            if apart
            else "; Nemenyi's test finds no two that differ."
            if found
            else ", so that none between two arms is claimed."
        )
    )
    return tuple(said)


_P: Final = Kind(
    lambda v: "no test" if v is None else p_value(v), lambda v: ("" if v is None else repr(v),)
)
_RANK: Final = fixed(2)
# A score with its rank.
_RANKED: Final = Kind(
    lambda v: percent(v[0]) if v[1] is None else f"{percent(v[0])} ({v[1]:g})",
    lambda v: (
        "" if v[0] is None else f"{100 * v[0]:.2f}",
        "" if v[1] is None else f"{v[1]:g}",
    ),
    ("_percent", "_rank"),
)


def partitions_tables(found: Partitions, comparisons: Comparisons) -> dict[str, Table]:
    """Return all tables by name; those without rows are left out."""
    tables = (
        _means_table(found),
        _tests_table(found),
        _pairs_table(found),
        *(_ranks_table(found, score) for score in found.rankings),
        _effects_table(comparisons),
        _partitions_table(found, comparisons),
    )
    return {table.name: table for table in tables if table.rows}


def _means_table(found: Partitions) -> Table:
    ranks = {score: ranking.average_ranks or {} for score, ranking in found.rankings.items()}
    seeds = "one seed" if len(found.seeds) == 1 else f"{len(found.seeds)} seeds"
    return Table(
        name="headline",
        title="Over all partitions",
        caption=f"Means over {len(found.partitions)} partitions with {seeds} each; percent. Rank 1 "
        "is best.",
        columns=(
            Column("arm", "Arm", TEXT),
            *(Column(f"rank_{s}", f"Average rank, {SCORES[s]}", _RANK) for s in ranks),
            Column("client_mean", "Client-mean F1", PERCENT),
            Column("worst_site", "Worst-site F1", PERCENT),
            Column("site_spread", "Spread over sites", PERCENT),
            Column("bytes", "MB a run", MEGABYTES),
        ),
        rows=tuple(
            (
                arm_title(arm),
                *(by.get(arm) for by in ranks.values()),
                means.client_mean,
                means.worst_site,
                means.site_spread,
                means.bytes,
            )
            for arm, means in found.arms.items()
        ),
        notes=(SPREAD_NOTE,),
    )


def _tests_table(found: Partitions) -> Table:
    rows = []
    for score, ranking in found.rankings.items():
        test, nemenyi = ranking.friedman, ranking.nemenyi
        rows.append(
            (
                SCORES[score].capitalize(),
                ranking.ranked_partitions,
                None if test is None else test.statistic,
                None if test is None else test.degrees,
                None if test is None else test.p_value,
                None if nemenyi is None else nemenyi.critical_difference,
                ranking.degenerate or "",
            )
        )
    few = dict.fromkeys(said for r in found.rankings.values() for said in reads_of_few(r))
    return Table(
        name="tests",
        title="Friedman's test and Nemenyi's critical difference",
        caption="Rows of the tests are partitions; more seeds of one partition are none.",
        columns=(
            Column("score", "Ranked by", TEXT),
            Column("partitions", "Partitions", COUNT),
            Column("chi_square", "Chi-square", fixed(2)),
            Column("degrees", "Degrees of freedom", COUNT),
            Column("p_value", "p", _P),
            Column("critical_difference", "Critical difference", _RANK),
            Column("no_test", "No test because", TEXT),
        ),
        rows=tuple(rows),
        notes=tuple(f"{said[0].upper()}{said[1:]}." for said in few),
    )


def _pairs_table(found: Partitions) -> Table:
    rows = [
        (
            SCORES[score].capitalize(),
            arm_title(pair.ahead),
            arm_title(pair.behind),
            pair.ranks,
            pair.p_value,
            "yes" if pair.differ else "no",
        )
        for score, ranking in found.rankings.items()
        for pair in ranking.apart()
    ]
    return Table(
        name="nemenyi",
        title="Nemenyi's test of every pair",
        caption="A difference is claimed only where Friedman's test finds one at all.",
        columns=(
            Column("score", "Ranked by", TEXT),
            Column("ahead", "Ahead", TEXT),
            Column("behind", "Behind", TEXT),
            Column("ranks_apart", "Ranks apart", _RANK),
            Column("p_value", "p", _P),
            Column("differ", "Differ", TEXT),
        ),
        rows=tuple(rows),
    )


def _ranks_table(found: Partitions, score: RankedBy) -> Table:
    return Table(
        name=f"ranks-{score.replace('_', '-')}",
        title=f"By partition: {SCORES[score]}",
        caption="Percent, with the rank in the partition.",
        columns=(
            Column("partition", "Partition", TEXT),
            *(Column(arm, arm_title(arm), _RANKED) for arm in found.arms),
        ),
        rows=tuple(
            (
                part.comparison,
                *((part.scores.get(arm), (part.ranks or {}).get(arm)) for arm in found.arms),
            )
            for part in found.rankings[score].partitions
        ),
    )


def _effects_table(comparisons: Comparisons) -> Table:
    rows = [
        (name, contrast_title(contrast), *(cell for effect in effects for cell in (effect, effect)))
        for name, result in comparisons.items()
        for contrast in result.contrasts
        for effects in [
            [
                result.effect(contrast, result.selected_round, s)
                for s in ("client_mean", "worst_site")
            ]
        ]
    ]
    columns = [Column("partition", "Partition", TEXT), Column("comparison", "Comparison", TEXT)]
    for key, title in SCORES.items():
        columns += [
            Column(key, title.capitalize(), POINTS),
            Column(key, "95 % interval", INTERVAL),
        ]
    return Table(
        name="effects",
        title="Differences within each partition",
        caption="Points of F1 with 95 % intervals: paired bootstrap over patients within sites.",
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _partitions_table(found: Partitions, comparisons: Comparisons) -> Table:
    def total(result: Comparison, what: str) -> int | None:
        values = [getattr(support, what) for support in result.sites.values()]
        return None if None in values else sum(values)

    return Table(
        name="partitions",
        title="Partitions",
        caption="Each has a report of its own in its folder.",
        columns=(
            Column("partition", "Folder", CODE),
            Column("sites_folder", "Folder of its sites", CODE),
            Column("sites", "Sites", COUNT),
            Column("pairs", "Pairs", COUNT),
            Column("dev_reports", "Dev reports", COUNT),
            Column("round", "Round", COUNT),
        ),
        rows=tuple(
            (
                part.path,
                part.sites,
                len(comparisons[part.path].sites),
                total(comparisons[part.path], "pairs"),
                total(comparisons[part.path], "dev_reports"),
                part.selected_round,
            )
            for part in found.partitions
        ),
    )
