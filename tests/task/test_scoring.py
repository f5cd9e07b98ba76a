"""Scores against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.task import ONTOLOGY, Ignore, MatchCounts, Structure, match_counts, score

LEFT = ("pneumonia", "left lung")
RIGHT = ("pneumonia", "right lung")
names = st.sampled_from(ONTOLOGY.diseases)
structures = st.builds(
    Structure, st.lists(names), st.lists(st.tuples(names, st.sampled_from(ONTOLOGY.locations)))
)
ignores = st.builds(Ignore, st.frozensets(names), st.frozensets(names))


def test_hand_worked() -> None:
    # target findings {left, right}; candidate {left}: tp 1, fn 1 -> F1 2/3. Diseases agree: F1 1.
    result = score(Structure([], [LEFT]), Structure([], [LEFT, RIGHT]))
    assert result.location_disease_f1 == pytest.approx(2 / 3)
    assert result.disease_f1 == 1
    assert result.composite == pytest.approx(0.70 * 2 / 3 + 0.25 + 0.05)


def test_a_disease_at_the_wrong_place() -> None:
    result = score(Structure([], [LEFT]), Structure([], [RIGHT]))
    assert (result.location_disease_f1, result.disease_f1) == (0, 1)
    assert result.composite == pytest.approx(0.30)


@pytest.mark.parametrize(
    ("wrong", "f1"), [([], 1), (["pneumonia"], 1 / 2), (["pneumonia", "atelectasis"], 1 / 3)]
)
def test_empty_target(wrong: list[str], f1: float) -> None:
    result = score(Structure(wrong), Structure())
    assert result.disease_f1 == pytest.approx(f1)
    assert result.location_disease_f1 == 1  # no finding predicted
    assert result.composite == pytest.approx(0.70 + 0.25 * f1 + 0.05)


def test_empty_target_set_of_findings_only() -> None:
    # The target names a disease without a place; each predicted finding counts as an error.
    result = score(Structure([], [LEFT, RIGHT]), Structure(["pneumonia"]))
    assert result.location_disease_f1 == pytest.approx(1 / 3)
    assert result.disease_f1 == 1


def test_an_ignored_disease_leaves_both_sides() -> None:
    candidate = Structure(["atelectasis"], [LEFT])
    target = Structure([], [("consolidation", "left lung")])
    ignore = Ignore(frozenset({"pneumonia", "consolidation"}))
    assert match_counts(candidate, target, ignore) == MatchCounts(0, 0, 0, 0, 1, 0)
    # m is counted after removal: one disease, no finding.
    assert score(candidate, target, ignore).composite == pytest.approx(0.70 + 0.25 / 2 + 0.05)


def test_locations_of_takes_only_the_findings() -> None:
    candidate, target = Structure([], [LEFT]), Structure(["pneumonia"])
    ignore = Ignore(locations_of=frozenset({"pneumonia"}))
    assert match_counts(candidate, target, ignore) == MatchCounts(0, 0, 0, 1, 0, 0)
    assert score(candidate, target, ignore).composite == pytest.approx(1)


@given(structures, structures, ignores)
def test_invariants(candidate: Structure, target: Structure, ignore: Ignore) -> None:
    result = score(candidate, target, ignore)
    assert 0 <= result.location_disease_f1 <= 1
    assert 0.05 <= result.composite <= 1 + 1e-12
    assert score(target, target, ignore).composite == pytest.approx(1)
    forward, backward = (
        match_counts(candidate, target, ignore),
        match_counts(target, candidate, ignore),
    )
    assert (forward.tp, forward.fp, forward.fn) == (backward.tp, backward.fn, backward.fp)
