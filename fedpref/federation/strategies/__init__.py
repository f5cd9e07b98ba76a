"""Aggregation strategies: Flower `Strategy` classes, one file each.

With `local` nothing is aggregated across sites: every site is a federation of its own (see
`federation.alone`), in which the mean of one adapter is that adapter.
"""

from typing import Final

from flwr.serverapp.strategy import Strategy

from fedpref.federation.strategies.pair_fedavg import PairFedAvg

LOCAL: Final = "local"
STRATEGIES: Final[dict[str, type[Strategy]]] = {"pair-fedavg": PairFedAvg, LOCAL: PairFedAvg}
