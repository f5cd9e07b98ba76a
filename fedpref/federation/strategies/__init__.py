"""Aggregation strategies: Flower `Strategy` classes, one file each."""

from flwr.serverapp.strategy import Strategy

from fedpref.federation.strategies.pair_fedavg import PairFedAvg

STRATEGIES: dict[str, type[Strategy]] = {"pair-fedavg": PairFedAvg}
