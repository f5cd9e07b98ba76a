"""The mean of the sites' adapters by their pairs, in which no site has more than a given share."""

from collections.abc import Sequence

from fedpref.adapter_state import AdapterState
from fedpref.errors import ConfigError
from fedpref.federation.strategies import RunFacts, Said, SiteStrategy, SiteUpdate, mean


class CappedMean(SiteStrategy):
    """phi(t) = Σ_k w_k·phi_k(t), w_k the share of the pairs but at most `cap`.

    What a capped site loses goes to the others in proportion to their pairs.
    """

    stateless = True  # nothing is kept from round to round: a run can be resumed

    def __init__(self, *, cap: float = 0.5) -> None:
        if not 0 < cap <= 1:
            raise ValueError("cap lies above 0 and is at most 1")
        self.cap = cap

    def prepare(self, facts: RunFacts) -> None:
        """Refuse a cap that even equal shares would break."""
        if self.cap * len(facts.sites) < 1:
            raise ConfigError(
                f"{len(facts.sites)} sites cannot all have at most {self.cap:g}",
                key="strategy-options",
            )

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the mean and, for the round's record, the weights and the number of capped."""
        counts = [update.pairs for update in updates]
        # If some sites are missing, the cap may have to give way to equal shares.
        weights = capped_shares(counts, max(self.cap, 1 / len(counts)))
        state, said = mean(updates, weights)
        capped = sum(w < c / sum(counts) for w, c in zip(weights, counts, strict=True))
        return state, {**said, "capped": capped}


def capped_shares(counts: Sequence[int], cap: float) -> list[float]:
    """Return shares ∝ counts, each at most `cap` ≥ 1/K, summing to 1."""
    free, shares = set(range(len(counts))), [0.0] * len(counts)
    while free:
        left = 1 - cap * (len(counts) - len(free))
        total = sum(counts[k] for k in free)
        over = {k for k in free if left * counts[k] / total > cap}
        for k in over or free:
            shares[k] = cap if over else left * counts[k] / total
        free = free - over if over else set()
    return shares
