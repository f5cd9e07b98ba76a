"""What an aggregation strategy may change in a site's training, or ask about it; torch-free.

It travels as fields of the train message's config record. A field that is not one of these changes
nothing at a site.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fedpref.errors import TrainingError

# Flower's FedProx sends the first name.
PROXIMAL_MU: Final = "proximal-mu"
FREEZE_A: Final = "freeze-lora-a"
REPORT_LOSS: Final = "report-train-loss"
FIELDS: Final = frozenset({PROXIMAL_MU, FREEZE_A, REPORT_LOSS})


@dataclass(frozen=True)
class Adjustment:
    """A site's training as the strategy wants it; the default changes nothing.

    `proximal_mu` ≥ 0 adds mu/2·‖w − w_start‖² to the loss of every optimiser step, w_start being
    the adapter that the phase starts from. `freeze_a` leaves every lora_A as it is. `report_loss`
    changes nothing in the training: the site also sends its mean loss.
    """

    proximal_mu: float = 0.0
    freeze_a: bool = False
    report_loss: bool = False

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> "Adjustment":
        """Return the adjustment of a train message; raises TrainingError on a value of no use."""
        mu = fields.get(PROXIMAL_MU, 0.0)
        if not isinstance(mu, int | float) or not math.isfinite(mu) or mu < 0:
            raise TrainingError(
                f"the strategy sent {PROXIMAL_MU} = {mu!r}", why="it is a finite number ≥ 0"
            )
        return cls(float(mu), _flag(fields, FREEZE_A), _flag(fields, REPORT_LOSS))

    def to_dict(self) -> dict[str, float | bool]:
        """Return what alters the adapter that training gives, by name; {} if nothing does."""
        changed: dict[str, float | bool] = {}
        if self.proximal_mu:
            changed["proximal_mu"] = self.proximal_mu
        if self.freeze_a:
            changed["freeze_a"] = True
        return changed


AS_USUAL: Final = Adjustment()


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise TrainingError(f"the strategy sent {name} = {value!r}", why="it is a bool")
    return value
