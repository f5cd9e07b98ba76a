"""The selected round: best client mean, then worst site, then the earlier one."""

import pytest

from fedpref.evaluation import select_round


@pytest.mark.parametrize(
    ("mean", "worst", "expected"),
    [
        ([0.50, 0.61, 0.60, 0.59], [0.4, 0.4, 0.5, 0.6], 1),
        ([0.50, 0.60, 0.60, 0.59], [0.4, 0.4, 0.5, 0.6], 2),
        ([0.60, 0.60, 0.60], [0.5, 0.5, 0.5], 0),
        # Equal but for the order of a sum: the worst site decides.
        ([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], [0.4, 0.5], 1),
        ([0.6 + 2e-9, 0.6], [0.4, 0.5], 0),
        ([None, 0.1], [None, 0.0], 1),
        ([0.6, 0.6], [None, 0.0], 1),
        ([0.7], [0.7], 0),
    ],
)
def test_select_round(mean: list[float | None], worst: list[float | None], expected: int) -> None:
    assert select_round(mean, worst) == expected


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one each a round"):
        select_round([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="no round"):
        select_round([None], [0.2])
    with pytest.raises(ValueError, match="finite"):
        select_round([float("nan"), 0.1], [0.1, 0.1])
