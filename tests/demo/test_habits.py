import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpref.demo.cases import Place
from fedpref.demo.generate import Mention, SyntheticReport, sample_report, sample_style
from fedpref.demo.habits import EXACT, EXACT_RATE, HABIT_RATES, Habits, answer, sample_habits
from fedpref.task import Structure

BASE = Place("both", "lower lung zone")
MENTIONS = (
    Mention("atelectasis", BASE, "present"),
    Mention("pneumonia", Place("right", "lower lung zone"), "hedged"),
    Mention("pleural effusion", Place("left", "lung"), "unchanged"),
    Mention("consolidation", Place("left", "upper lung zone"), "resolved"),
    Mention("pneumothorax", Place(), "denied"),
    Mention("fluid overload/heart failure", Place(), "historical"),
)


def said(**habits):
    report = SyntheticReport("", Structure(), MENTIONS)
    return answer(report, Habits(**habits))


def test_each_habit_changes_what_it_says():
    exact = said()
    assert exact.diseases == ("pleural effusion", "atelectasis", "pneumonia")
    assert "pneumonia" not in said(drop_hedged=True).diseases
    assert "pleural effusion" not in said(drop_unchanged=True).diseases
    assert ("consolidation", "left upper lung zone") in said(keep_resolved=True).findings
    assert "pneumothorax" in said(keep_denied=True).diseases
    assert "fluid overload/heart failure" in said(keep_historical=True).diseases
    assert [f for f in said(lung_only=True).findings if f[0] == "atelectasis"] == [
        ("atelectasis", "right lung"),
        ("atelectasis", "left lung"),
    ]
    assert said(drop_place=True) == Structure(exact.diseases)
    assert [f for f in said(one_side=True).findings if f[0] == "atelectasis"] == [
        ("atelectasis", "right lung"),
        ("atelectasis", "right lower lung zone"),
    ]


@given(st.integers(0, 2**32 - 1))
def test_an_answer_without_habits_is_the_annotation(seed):
    rng = np.random.default_rng(seed)
    report = sample_report(rng, sample_style(rng))
    assert answer(report, EXACT) == report.structure


def test_habits_come_at_their_rates():
    rng = np.random.default_rng(0)
    drawn = [sample_habits(rng) for _ in range(4000)]
    for name, rate in HABIT_RATES.items():
        expected = (1 - EXACT_RATE) * rate
        found = sum(getattr(habits, name) for habits in drawn) / len(drawn)
        assert abs(found - expected) <= 4 * (expected * (1 - expected) / len(drawn)) ** 0.5
    # Some answers that might have habits happen to have none.
    none = EXACT_RATE + (1 - EXACT_RATE) * math.prod(1 - rate for rate in HABIT_RATES.values())
    found = sum(habits == EXACT for habits in drawn) / len(drawn)
    assert abs(found - none) <= 4 * (none * (1 - none) / len(drawn)) ** 0.5
