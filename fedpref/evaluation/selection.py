"""The one round that all seeds and arms are reported at. Pure."""

import math
from collections.abc import Sequence
from typing import Final

# F1 values that differ only by the order of a sum are equal.
_DIGITS: Final = 9


def select_round(client_mean: Sequence[float | None], worst_site: Sequence[float | None]) -> int:
    """Return the round with the best client mean, ties by worst site, then the earlier round.

    Both are FedPref's by round from 0, each a mean over seeds. Values are compared after rounding
    to 9 digits. A round without a client mean is not eligible; one without a worst site loses ties.
    ValueError if the lengths differ, no round is eligible or a value is not finite.
    """
    if len(client_mean) != len(worst_site):
        raise ValueError(
            f"{len(client_mean)} client means and {len(worst_site)} worst sites: one each a round"
        )
    ranked = [
        (_rounded(mean), _rounded(worst), -round_)
        for round_, (mean, worst) in enumerate(zip(client_mean, worst_site, strict=True))
        if mean is not None
    ]
    if not ranked:
        raise ValueError("no round has a client mean")
    return -max(ranked)[2]


def _rounded(value: float | None) -> float:
    if value is None:
        return float("-inf")
    value = round(float(value), _DIGITS)
    if not math.isfinite(value):
        raise ValueError("a score is not finite")
    return value
