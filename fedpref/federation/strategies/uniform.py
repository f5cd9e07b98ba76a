"""Every site counts alike, however many pairs it has."""

from fedpref.federation.strategies.pair_fedavg import PairFedAvg


class Uniform(PairFedAvg):
    """phi(t) = 1/K · Σ_k phi_k(t) over the K sites that trained this round."""

    def weight(self, pairs: int) -> int:
        """Return 1."""
        return 1
