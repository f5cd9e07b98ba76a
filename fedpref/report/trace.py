"""What a strategy said of each round, such as FedDRAW's γ, β and reputations, as tables. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fedpref.report.common import WEIGHT
from fedpref.report.result import Traced
from fedpref.report.tables import PLAIN_ROUND, TEXT, Column, Kind, Table, fixed

_OF_ROUND: Final = fixed(4)
# Cosines of adapters that have moved little differ late.
_OF_SITE: Final = fixed(6)
_TITLES: Final = {
    "gamma": "γ",
    "beta": "β",
    "sizes": "Size",
    "similarities": "Similarity",
    "reputations": "Reputation",
}
_FEDDRAW: Final = (
    "γ: how much a site's size counts in its reputation, against its similarity to the previous "
    "model. β: how closely the weights follow the reputations; with 0 all are equal."
)


class Said(NamedTuple):
    """What one strategy said of each round, and the weights of the sites in it."""

    trace: Sequence[Mapping[str, Traced]]
    weights: Sequence[Mapping[str, float | None]]


def trace_tables(
    said: Mapping[str, Said], sites: Sequence[str], *, of: str = ""
) -> tuple[Table, Table]:
    """Return what each strategy said of the rounds, and of each site in them beside its weight.

    Strategies that said nothing are left out; a table has no rows if there is nothing of its kind.
    `of` is a sentence about whose rounds they are.
    """
    rounds = [
        (name, number, *both)
        for name, (trace, weights) in said.items()
        for number, both in enumerate(zip(trace, weights, strict=False))
    ]
    kinds: dict[str, set[type]] = {}
    for _, _, trace, _ in rounds:
        for name, value in trace.items():
            kinds.setdefault(name, set()).add(type(value))
    of_sites = [name for name, found in kinds.items() if dict in found]
    of_rounds = [name for name, found in kinds.items() if not found & {dict, tuple}]
    # The round comes first, as everywhere; a strategy is named where there are several.
    many = len(said) > 1
    start = [Column("round", "Round", PLAIN_ROUND)]
    start += [Column("system", "System", TEXT)] if many else []
    return (
        Table(
            name="strategy",
            title="The strategy by round",
            caption=of,
            columns=(*start, *_columns(of_rounds, _OF_ROUND)),
            rows=tuple(
                (number, *([name] * many), *map(trace.get, of_rounds))
                for name, number, trace, _ in rounds
                if trace.keys() & set(of_rounds)
            ),
            notes=(_FEDDRAW,) if {"gamma", "beta"} <= set(of_rounds) else (),
        ),
        Table(
            name="strategy-sites",
            title="The strategy by round and site",
            caption=of,
            columns=(
                *start,
                Column("site", "Site", TEXT),
                *_columns(of_sites, _OF_SITE),
                Column("weight", "Weight", WEIGHT),
            ),
            rows=tuple(
                (
                    number,
                    *([name] * many),
                    site,
                    *(_of(trace.get(key), site) for key in of_sites),
                    weights.get(site),
                )
                for name, number, trace, weights in rounds
                if trace.keys() & set(of_sites)
                for site in sites
            ),
        ),
    )


def _columns(names: Sequence[str], kind: Kind) -> tuple[Column, ...]:
    return tuple(Column(name, _TITLES.get(name, name), kind) for name in names)


def _of(said: Traced, site: str) -> float | None:
    return said.get(site) if isinstance(said, dict) else None
