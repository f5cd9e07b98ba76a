"""Aggregation strategies: Flower `Strategy` classes, one file each, and how a run gets its own.

`base` says what a strategy may be, `catalogue` lists those with a name, `build` makes the one of a
run, `memory` carries it over a resume. Flower's own are in `flower`.
"""

from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import RunFacts, Said, SiteStrategy, mean
from fedpref.federation.strategies.build import check_enough_sites, make_strategy, ready_strategy
from fedpref.federation.strategies.catalogue import LOCAL, NAMED
from fedpref.federation.strategies.memory import StrategyMemory

__all__ = [
    "LOCAL",
    "NAMED",
    "RunFacts",
    "Said",
    "SiteStrategy",
    "SiteUpdate",
    "StrategyMemory",
    "check_enough_sites",
    "make_strategy",
    "mean",
    "ready_strategy",
]
