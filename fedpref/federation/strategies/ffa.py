"""FFA-LoRA: lora_A stays as it was drawn, only lora_B is trained and averaged (arXiv:2403.12313).

With one A everywhere, the mean of the B_k gives exactly the mean of the products B_k·A.
"""

from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedpref.adapter_state import AdapterState
from fedpref.errors import RoundError
from fedpref.federation.aggregation import WeightedFold
from fedpref.federation.strategies.base import SiteStrategy, pairs_of, site_of, state_of
from fedpref.federation.wire import keyed_record, read_keyed
from fedpref.training.adjustment import FREEZE_A


class Ffa(SiteStrategy):
    """B(t) = Σ_k n_k/Σ_j n_j · B_k(t); A is the initial adapter's in every round.

    The sites are told to train lora_B only. An update with another A is an error that names the
    site: its B was trained for a matrix that nobody else has.
    """

    def __init__(self) -> None:
        self._frozen: AdapterState = {}

    def train_settings(self) -> dict[str, bool | float]:
        """Return the setting that freezes lora_A."""
        return {FREEZE_A: True}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the round's lora_A; return one message a node."""
        start = read_keyed(arrays)
        self._frozen = {key: value for key, value in start.items() if ".lora_A." in key}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the mean and the weights, or (None, None) if there is no reply."""
        fold, counts = WeightedFold(), []
        for reply in replies:
            state, site = state_of(reply), site_of(reply)
            for key, frozen in self._frozen.items():
                if not np.array_equal(state.pop(key), frozen):
                    raise RoundError("lora_A has changed under ffa", site=site, key=key)
            counts.append(pairs_of(reply))
            fold.add(state, counts[-1], site=site)
        if not counts:
            return None, None
        total = sum(counts)
        weights = [count / total for count in counts]
        return keyed_record({**self._frozen, **fold.mean()}), MetricRecord({"weights": weights})
