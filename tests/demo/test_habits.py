import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpref.demo.cases import Place
from fedpref.demo.generate import Mention, SyntheticReport, sample_report, sample_style
from fedpref.demo.habits import EXACT, Habits, answer, sample_habits
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


def test_exact_answers_come_at_their_rate():
    rng = np.random.default_rng(0)
    drawn = [sample_habits(rng) for _ in range(1000)]
    # 0.30 by design, and a few of the others happen to have no habit.
    assert 0.27 < sum(habits == EXACT for habits in drawn) / 1000 < 0.36
