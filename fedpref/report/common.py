"""Tables that a comparison and a plain run have alike. Pure."""

from collections.abc import Mapping, Sequence

from fedpref.report.tables import (
    CODE,
    PLAIN_ROUND,
    TEXT,
    Column,
    Kind,
    Table,
    fixed,
)
from fedpref.report.text import setting

Settings = Mapping[str, bool | int | float | str]

WEIGHT: Kind = fixed(4)


def weights_table(
    weights: Mapping[str, Sequence[Mapping[str, float | None]]],
    sites: Sequence[str],
    *,
    of: str = "",
) -> Table:
    """Return one row a round: each site's weight in the average; 0 for a site that did not train.

    `weights` are of each strategy, which is named if there are several; `of` is a sentence about
    whose they are.
    """
    many = len(weights) > 1
    return Table(
        name="weights",
        title="Aggregation weights",
        caption=f"The share of each site in the average of the round's adapters. {of}".strip(),
        columns=(
            Column("round", "Round", PLAIN_ROUND),
            *([Column("system", "System", TEXT)] if many else []),
            *(Column(site, site, WEIGHT) for site in sites),
        ),
        rows=tuple(
            (number, *([name] * many), *(row.get(site, 0.0) for site in sites))
            for name, rounds in weights.items()
            for number, row in enumerate(rounds)
        ),
    )


def config_table(config: Settings) -> Table:
    """Return one row a key, sections after the plain keys."""
    return Table(
        name="configuration",
        title="Effective configuration",
        columns=(Column("key", "Key", CODE), Column("value", "Value", CODE)),
        rows=tuple(
            (key, setting(config[key])) for key in sorted(config, key=lambda k: ("." in k, k))
        ),
    )


def versions_table(versions: Mapping[str, str]) -> Table:
    """Return one row a library."""
    return Table(
        name="versions",
        title="Versions",
        columns=(Column("library", "Library", TEXT), Column("version", "Version", CODE)),
        rows=tuple(sorted(versions.items())),
    )
