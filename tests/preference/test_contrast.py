"""One report's candidates, with the arithmetic in the test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.preference import select_pair
from fedpref.preference.contrast import report_contrast
from fedpref.task import ONTOLOGY, Ignore, MatchCounts, Projection, Structure

OPACITY, EFFUSION, ATELECTASIS = ONTOLOGY.diseases[:3]
RIGHT, LEFT = "right lung", "left lung"
FAILED = Projection(Structure(), False, False, "no_object", {})


def says(*findings: tuple[str, str], diseases: tuple[str, ...] = ()) -> Projection:
    return Projection(Structure(diseases, findings), True, True, None, {})


BOTH = Structure((), [(EFFUSION, RIGHT), (EFFUSION, LEFT)])


def test_the_oracle_is_the_best_by_composite_score() -> None:
    # With a target of one located finding and one disease without a place:
    # "place" F1s 1 and 2/3: 0.70 + 0.25·2/3 + 0.05; "names" F1s 0 and 1: 0.25 + 0.05.
    target = Structure([OPACITY], [(EFFUSION, RIGHT)])
    found = report_contrast(
        {"names": says(diseases=(OPACITY, EFFUSION)), "place": says((EFFUSION, RIGHT))}, target
    )
    assert found.oracle == "place"
    assert found.counts == {
        "names": MatchCounts(0, 0, 1, 2, 0, 0),
        "place": MatchCounts(1, 0, 0, 1, 0, 1),
    }
    assert found.oracle_counts == MatchCounts(1, 0, 0, 1, 0, 1)
    assert found.usable
    assert not found.identical


def test_ties_go_to_the_earliest() -> None:
    half = {"r": says((EFFUSION, RIGHT)), "l": says((EFFUSION, LEFT))}
    assert report_contrast(half, BOTH).oracle == "r"
    assert report_contrast(dict(reversed(half.items())), BOTH).oracle == "l"
    assert not report_contrast(half, BOTH).usable


def test_an_answer_without_an_object_counts_as_empty_and_is_never_the_oracle() -> None:
    # Against an empty target the failed answer, read as empty, would be the best one.
    found = report_contrast({"failed": FAILED, "wrong": says((OPACITY, LEFT))}, Structure())
    assert found.oracle == "wrong"
    assert found.counts["failed"] == MatchCounts(0, 0, 0, 0, 0, 0)
    assert found.oracle_counts == MatchCounts(0, 1, 0, 0, 1, 0)
    assert not found.usable
    none = report_contrast({"a": FAILED, "b": FAILED}, BOTH)
    assert (none.oracle, none.usable, none.identical) == (None, False, False)
    assert none.oracle_counts == MatchCounts(0, 0, 2, 0, 0, 1)


def test_identical_means_all_parsed_to_one_structure() -> None:
    same, parent = says((EFFUSION, LEFT)), says((EFFUSION, LEFT), diseases=(EFFUSION,))
    assert report_contrast({"a": same, "b": parent, "c": same}, BOTH).identical
    assert report_contrast({"a": says(), "b": says()}, BOTH).identical
    assert not report_contrast({"a": same, "b": parent, "c": FAILED}, BOTH).identical
    assert not report_contrast({"a": says(), "b": FAILED}, BOTH).identical
    assert not report_contrast({"a": same, "b": says((EFFUSION, RIGHT))}, BOTH).identical


def test_masks_leave_counts_scores_and_pairs() -> None:
    target = Structure((), [(EFFUSION, RIGHT)])
    ignore = Ignore(diseases=frozenset({OPACITY}))
    candidates = {
        "more": says((EFFUSION, RIGHT), (OPACITY, LEFT)),
        "plain": says((EFFUSION, RIGHT)),
        "wrong": says((ATELECTASIS, LEFT)),
    }
    masked = report_contrast(candidates, target, ignore=ignore)
    # Without the mask "plain" is better; with it they tie and the first one is taken.
    assert report_contrast(candidates, target).oracle == "plain"
    assert masked.oracle == "more"
    assert masked.oracle_counts == MatchCounts(1, 0, 0, 1, 0, 0)
    # What is undecided forms no pair, and two answers that differ in it are not identical.
    assert not masked.usable
    assert not report_contrast(dict(list(candidates.items())[:2]), target, ignore=ignore).identical


def test_the_margin_decides_what_is_usable() -> None:
    candidates = {"all": says(*BOTH.findings), "half": says((EFFUSION, LEFT))}
    # 0.70·(1 − 2/3) = 0.2333
    assert report_contrast(candidates, BOTH, min_margin=0.23).usable
    assert not report_contrast(candidates, BOTH, min_margin=0.24).usable


def test_no_candidate() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        report_contrast({}, BOTH)


PLACES = st.lists(
    st.tuples(st.sampled_from(ONTOLOGY.diseases[:3]), st.sampled_from([RIGHT, LEFT])), max_size=3
)


@given(
    st.lists(PLACES | st.none(), min_size=1, max_size=5),
    PLACES,
    st.frozensets(st.sampled_from(ONTOLOGY.diseases[:3]), max_size=1),
)
def test_the_oracle_is_what_a_pair_chooses(
    answers: list[list[tuple[str, str]] | None],
    target: list[tuple[str, str]],
    ignored: frozenset[str],
) -> None:
    candidates = {str(k): FAILED if a is None else says(*a) for k, a in enumerate(answers)}
    mask = Ignore(diseases=ignored)
    found = report_contrast(candidates, Structure((), target), ignore=mask)
    pair = select_pair(candidates, Structure((), target), ignore=mask)
    assert found.usable == (pair is not None)
    if pair is not None:
        assert found.oracle == pair.chosen_teacher
        assert not found.identical
    if found.oracle is not None:
        assert found.oracle_counts == found.counts[found.oracle]
