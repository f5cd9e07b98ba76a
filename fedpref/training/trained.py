"""What a training phase hands back; torch-free."""

from dataclasses import dataclass

from fedpref.adapter_state import AdapterState


@dataclass(frozen=True)
class Trained:
    """A trained adapter and what it took.

    `trained_pair_count` is the number of distinct pairs that entered an optimiser step, `steps` the
    number of those steps. Losses are those of an accumulation group (one optimiser step each):
    mean over response tokens for SFT, mean over pairs for DPO; `mean_loss` is over the steps.
    """

    state: AdapterState
    trained_pair_count: int
    steps: int
    first_loss: float
    last_loss: float
    mean_loss: float
    seconds: float
