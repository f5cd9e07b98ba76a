"""Aggregation strategies: Flower `Strategy` classes, one file each, and how a run gets its own.

`base` says what a strategy may be, `catalogue` lists those with a name, `build` makes the one of a
run, `memory` carries it over a resume. Flower's own are in `flower`.
"""

from fedpref.federation.strategies.base import RunFacts, SiteStrategy
from fedpref.federation.strategies.build import check_enough_sites, make_strategy, ready_strategy
from fedpref.federation.strategies.catalogue import LOCAL, NAMED
from fedpref.federation.strategies.memory import StrategyMemory

__all__ = [
    "LOCAL",
    "NAMED",
    "RunFacts",
    "SiteStrategy",
    "StrategyMemory",
    "check_enough_sites",
    "make_strategy",
    "ready_strategy",
]
