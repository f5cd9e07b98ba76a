"""Phrase tables and spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.preference.teachers.phrases import PhraseTable, Span, Spelling, nearest, words_of


def test_words_fold_case_and_leave_out_hyphens() -> None:
    assert words_of("Right-sided W/O x_y's") == ("right", "sided", "w", "/", "o", "x", "_", "y's")


def test_the_longest_phrase_wins_and_shields_its_words() -> None:
    table = PhraseTable()
    table.add("finding", ["effusion"], ("pleural effusion",))
    table.add("shield", ["pericardial effusion"])
    words = words_of("effusion and pericardial effusion")
    assert table.find(words) == [
        Span("finding", ("pleural effusion",), 0, 1),
        Span("shield", (), 2, 4),
    ]


def test_values_of_one_kind_add_up_and_the_first_kind_stays() -> None:
    table = PhraseTable()
    table.add("finding", ["hazy opacity"], ("a",))
    table.add("finding", ["hazy opacity"], ("b",))
    table.add("noun", ["hazy opacity"])
    assert table.find(words_of("hazy opacity")) == [Span("finding", ("a", "b"), 0, 2)]


@pytest.mark.parametrize(
    ("word", "read_as"),
    [
        ("pnuemothorax", "pneumothorax"),  # swapped
        ("atelectisis", "atelectasis"),  # changed
        ("atelctasis", "atelectasis"),  # lost
        ("effussion", "effusion"),  # added
        ("infusion", "infusion"),  # a word of its own
        ("pnuemothroax", "pnuemothroax"),  # two slips
        ("effort", "effort"),
    ],
)
def test_one_slip_is_corrected(word: str, read_as: str) -> None:
    spelling = Spelling(["pneumothorax", "atelectasis", "effusion"], ["infusion"])
    assert spelling.correct(word) == read_as


@given(st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=8), st.integers(0, 50))
def test_nearest_is_what_a_search_through_all_finds(starts: list[int], at: int) -> None:
    spans = [Span("x", (), 2 * start, 2 * start + 1) for start in sorted(starts)]
    target = Span("y", (), 2 * at + 1, 2 * at + 2)
    found = nearest(spans, target)
    assert found is not None
    distance = {abs(span.start - target.start) for span in spans}
    assert abs(found.start - target.start) == min(distance)
