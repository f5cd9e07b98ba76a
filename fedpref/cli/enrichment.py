"""What `fedpref partition --enrich` and `--enrich-small` ask for, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.table import Table

from fedpref.data.partition import MAX_FACTOR
from fedpref.data.quantity import small_sites
from fedpref.errors import ConfigError
from fedpref.report.text import percent

DEFAULT_FACTOR: Final = 4.0


@dataclass(frozen=True)
class Enrichment:
    """Reports with label number `label` go to these sites `factor` times as readily as by size."""

    label: int
    sites: tuple[int, ...]
    factor: float


def read_enrichments(
    named: Sequence[str],
    small: Sequence[str],
    *,
    labels: Sequence[str],
    sites: Sequence[str],
    shares: ArrayLike,
) -> list[Enrichment]:
    """Return what `LABEL=SITE[:FACTOR]` and, for small sites, `LABEL[:FACTOR]` mean.

    Small sites are those below an equal share. Raises ConfigError naming the option: an unknown
    label or site, a factor that enriches nothing, no small site, or one label and site twice.
    """
    found = [_named(text, labels, sites) for text in named]
    found += [_small(text, labels, shares) for text in small]
    seen: set[tuple[int, int]] = set()
    for enrichment in found:
        for site in enrichment.sites:
            if (enrichment.label, site) in seen:
                raise ConfigError(
                    f"{labels[enrichment.label]!r} is enriched twice at {sites[site]}",
                    why="only one factor can hold",
                    fix="leave one of the two options out",
                )
            seen.add((enrichment.label, site))
    return found


def factors(
    enrichments: Sequence[Enrichment], labels: int, sites: int
) -> NDArray[np.float64] | None:
    """Return the (labels, sites) factors for `allocate`, None if nothing is enriched."""
    if not enrichments:
        return None
    result = np.ones((labels, sites))
    for enrichment in enrichments:
        result[enrichment.label, list(enrichment.sites)] = enrichment.factor
    return result


def outcome(
    enrichments: Sequence[Enrichment],
    *,
    labels: NDArray[np.bool_],
    at: NDArray[np.int64],
    split_of: NDArray[np.str_],
    splits: Sequence[str],
    label_names: Sequence[str],
    site_names: Sequence[str],
) -> list[dict[str, Any]]:
    """Return what was asked for, with the label's share of reports at the sites and in the pool.

    A share is by split, None where there are no reports.
    """
    return [
        {
            "label": label_names[enrichment.label],
            "sites": [site_names[site] for site in enrichment.sites],
            "factor": enrichment.factor,
            "there": {
                split: _share(
                    labels[(split_of == split) & np.isin(at, enrichment.sites), enrichment.label]
                )
                for split in splits
            },
            "pool": {
                split: _share(labels[split_of == split, enrichment.label]) for split in splits
            },
        }
        for enrichment in enrichments
    ]


def outcome_table(rows: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> Table:
    """Return the outcome as a table: by split, percent at the sites / in the pool."""
    table = Table(title="Enriched labels: % of reports at these sites / in the pool")
    table.add_column("label", no_wrap=True)
    table.add_column("sites")
    table.add_column("factor", justify="right")
    for split in splits:
        table.add_column(split, justify="right")
    for row in rows:
        table.add_row(
            row["label"],
            ", ".join(row["sites"]),
            f"{row['factor']:g}",
            *(f"{percent(row['there'][s])} / {percent(row['pool'][s])}" for s in splits),
        )
    return table


def _named(text: str, labels: Sequence[str], sites: Sequence[str]) -> Enrichment:
    option = f"--enrich {text!r}"
    label, equals, rest = text.rpartition("=")
    site, colon, factor = rest.partition(":")
    if not equals:
        raise ConfigError(
            f"{option} names no site", fix=f'write, for example, "{text}={sites[-1]}"'
        )
    if site not in sites:
        raise ConfigError(
            f"{option}: there is no site {site!r}", fix=f"use one of {', '.join(sites)}"
        )
    number = _label(label, labels, option)
    return Enrichment(number, (sites.index(site),), _factor(factor if colon else None, option))


def _small(text: str, labels: Sequence[str], shares: ArrayLike) -> Enrichment:
    option = f"--enrich-small {text!r}"
    # A label of an ontology of one's own may hold a colon.
    label, colon, factor = (text, "", "") if text in labels else text.rpartition(":")
    number = _label(label if colon else text, labels, option)
    small = small_sites(shares)
    if not len(small):
        raise ConfigError(
            f"{option}: no site is small",
            why="all sites are of one size",
            fix="give sizes with --shares or --quantity, or name sites with --enrich",
        )
    sites = tuple(int(site) for site in small)
    return Enrichment(number, sites, _factor(factor if colon else None, option))


def _label(label: str, labels: Sequence[str], option: str) -> int:
    if label not in labels:
        raise ConfigError(
            f"{option}: there is no label {label!r}", fix=f"use one of {', '.join(labels)}"
        )
    return labels.index(label)


def _factor(text: str | None, option: str) -> float:
    if text is None:
        return DEFAULT_FACTOR
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 < factor <= MAX_FACTOR:
        raise ConfigError(
            f"{option}: the factor {text!r} enriches nothing, or is no number",
            fix=f"use a number above 1 and up to {MAX_FACTOR:g}",
        )
    return factor


def _share(has: NDArray[np.bool_]) -> float | None:
    return float(has.mean()) if len(has) else None
