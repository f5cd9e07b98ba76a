"""FFA-LoRA: lora_A stays as it was drawn, only lora_B is trained and averaged (arXiv:2403.12313).

With one A everywhere, the mean of the B_k gives exactly the mean of the products B_k·A.
"""

from fedpref.federation.strategies.pair_fedavg import PairFedAvg
from fedpref.training.adjustment import FREEZE_A


class Ffa(PairFedAvg):
    """B(t) = Σ_k n_k/Σ_j n_j · B_k(t); A is the initial adapter's in every round.

    The sites are told to train lora_B only; an update with another A is refused by the guards. The
    mean of equal A is that A, bit for bit.
    """

    stateless = True

    def train_settings(self) -> dict[str, bool | float]:
        """Return the setting that freezes lora_A."""
        return {FREEZE_A: True}
