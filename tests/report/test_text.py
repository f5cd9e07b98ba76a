import pytest

from fedpref.report import text
from fedpref.report.result import Effect


def effect(**values: object) -> Effect:
    base = {"a": "fedpref", "b": "local", "round": 3, "statistic": "client_mean"}
    none = {"effect": 0.1, "low": None, "high": None, "degenerate": None}
    return Effect.model_validate({**base, **none, **values})


def test_shares_are_percent_with_two_digits_and_null_is_no_data() -> None:
    assert text.percent(0.69111) == "69.11"
    assert text.percent(0.0) == "0.00"
    assert text.percent(None) == "no data"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0249, "+2.49"),
        (-0.0187, "−1.87"),
        (0.00001, "0.00"),
        (-0.00001, "0.00"),
        (None, "no data"),
    ],
)
def test_points_are_signed_unless_they_round_to_zero(value: float | None, shown: str) -> None:
    assert text.points(value) == shown


def test_an_interval_is_numbers_or_words() -> None:
    assert text.interval(effect(low=0.0124, high=0.0379)) == "+1.24 to +3.79"
    assert text.interval(effect(degenerate="all draws are equal")) == (
        "no interval: all draws are equal"
    )
    # Whatever the ends say: an interval that is none is never printed as one.
    both = effect(low=0.0, high=0.0, degenerate="all reports are of one patient")
    assert text.interval(both) == "no interval: all reports are of one patient"
    assert text.interval(effect()) == "no data"
    assert text.interval(None) == "no data"


def test_counts_bytes_and_settings() -> None:
    assert text.count(2961) == "2,961"
    assert text.megabytes(7_812_345) == "7.81"
    assert text.mean_and_spread(0.6911, 0.0017) == "69.11 ± 0.17"
    assert text.mean_and_spread(0.6911, None) == "69.11"
    assert [text.setting(value) for value in (True, 2e-4, "", 16)] == [
        "true",
        "0.0002",
        "(empty)",
        "16",
    ]
