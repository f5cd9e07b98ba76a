"""FFA-LoRA: lora_A stays as it was drawn, only lora_B is trained and averaged (arXiv:2403.12313).

With one A everywhere, the mean of the B_k gives exactly the mean of the products B_k·A.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedpref.adapter_state import AdapterState
from fedpref.errors import RoundError
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import Said
from fedpref.federation.strategies.pair_fedavg import PairFedAvg
from fedpref.federation.wire import read_keyed
from fedpref.training.adjustment import FREEZE_A


class Ffa(PairFedAvg):
    """B(t) = Σ_k n_k/Σ_j n_j · B_k(t); A is the initial adapter's in every round.

    The sites are told to train lora_B only. An update with another A is an error that names the
    site: its B was trained for a matrix that nobody else has. The mean of equal A is that A, bit
    for bit.
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
        self._frozen = {key: a for key, a in read_keyed(arrays).items() if ".lora_A." in key}
        return super().configure_train(server_round, arrays, config, grid)

    def combine(self, round_: int, updates: Sequence[SiteUpdate]) -> tuple[AdapterState, Said]:
        """Return the mean and the weights."""
        for update in updates:
            for key, frozen in self._frozen.items():
                if not np.array_equal(update.state[key], frozen):
                    raise RoundError("lora_A has changed under ffa", site=update.site, key=key)
        return super().combine(round_, updates)
