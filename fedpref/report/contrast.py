"""The candidate contrast: what `fedpref contrast` found in pools of candidates, as tables."""

from pathlib import Path
from typing import Final, Literal

from fedpref.report.result import Count, Difference, Part, Share, read_result
from fedpref.report.tables import COUNT, INTERVAL, PERCENT, POINTS, TEXT, Column, Kind, Table
from fedpref.report.text import NO_DATA, points

CONTRAST: Final = "contrast.json"


def _named(name: str | None) -> str:
    return NO_DATA if name is None else name


CANDIDATE: Final = Kind(_named, lambda v: TEXT.csv(v or ""), numeric=False)
GAIN: Final = Kind(
    points, lambda v: ("" if v is None else f"{100 * v:.2f}",), suffixes=("_points",)
)


class PoolResult(Part):
    """One pool, as `fedpref.evaluation.headroom` has it."""

    pool: str
    candidates: tuple[str, ...]
    reports: Count
    patients: Count
    f1: dict[str, Share | None]
    best: str | None
    baseline: str | None
    baseline_f1: Share | None
    oracle_f1: Share | None
    headroom: float | None
    usable: Count
    coverage: Share | None
    identical: Count
    identical_share: Share | None
    over_best: Difference


class Contrast(Part):
    """`contrast.json`, as `fedpref contrast --json` prints it."""

    kind: Literal["contrast"]
    synthetic: bool
    split: str
    sites: tuple[str, ...]
    min_margin: float
    draws: Count
    seed: int
    pools: tuple[PoolResult, ...]


def load_contrast(folder: Path) -> Contrast | None:
    """Return the contrast in the folder of a run or comparison, None if there is none.

    DataError if the file is malformed.
    """
    path = folder / CONTRAST
    return read_result(path, Contrast) if path.exists() else None


def contrast_tables(contrast: Contrast) -> dict[str, Table]:
    """Return how much the pools' candidates differ, what an oracle gains, and each one's F1."""
    tables = (_differences(contrast), _oracle(contrast), _candidates(contrast))
    return {table.name: table for table in tables}


def _differences(contrast: Contrast) -> Table:
    return Table(
        name="contrast",
        title="Do the candidates differ enough to learn from?",
        caption=f"{contrast.split.capitalize()} reports of {len(contrast.sites)} sites.",
        columns=(
            Column("pool", "Pool", TEXT),
            Column("reports", "Reports", COUNT),
            Column("patients", "Patients", COUNT),
            Column("usable", "Usable pairs", COUNT),
            Column("coverage", "Usable (%)", PERCENT),
            Column("identical", "All identical", COUNT),
            Column("identical", "Identical (%)", PERCENT),
        ),
        rows=tuple(
            (
                pool.pool,
                pool.reports,
                pool.patients,
                pool.usable,
                pool.coverage,
                pool.identical,
                pool.identical_share,
            )
            for pool in contrast.pools
        ),
        notes=(
            "Usable: the candidates form a preference pair, with a margin of at least "
            f"{contrast.min_margin:g}. Identical: all candidates say the same; there is nothing to "
            "prefer.",
        ),
    )


def _oracle(contrast: Contrast) -> Table:
    return Table(
        name="contrast-oracle",
        title="What the best candidate of each report gains",
        caption="Loc+dis F1 in percent, differences in points with 95 % intervals.",
        columns=(
            Column("pool", "Pool", TEXT),
            Column("baseline", "Baseline", CANDIDATE),
            Column("baseline_f1", "Baseline F1", PERCENT),
            Column("oracle_f1", "Oracle F1", PERCENT),
            Column("headroom", "Headroom", GAIN),
            Column("best", "Best candidate", CANDIDATE),
            Column("over_best", "Oracle − best", POINTS),
            Column("over_best", "95 % interval", INTERVAL),
        ),
        rows=tuple(
            (
                pool.pool,
                pool.baseline,
                pool.baseline_f1,
                pool.oracle_f1,
                pool.headroom,
                pool.best,
                pool.over_best,
                pool.over_best,
            )
            for pool in contrast.pools
        ),
        notes=(
            "The oracle looks at the annotation and takes each report's best candidate; headroom "
            "is oracle − baseline. No oracle can be deployed.",
        ),
    )


def _candidates(contrast: Contrast) -> Table:
    return Table(
        name="contrast-candidates",
        title="The candidates",
        caption="Loc+dis F1 over all these reports; percent.",
        columns=(
            Column("pool", "Pool", TEXT),
            Column("candidate", "Candidate", TEXT),
            Column("f1", "F1", PERCENT),
        ),
        rows=tuple(
            (pool.pool, name, f1) for pool in contrast.pools for name, f1 in pool.f1.items()
        ),
    )
