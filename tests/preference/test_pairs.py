"""Pair selection, with the arithmetic in the test."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.preference import Pair, select_pair
from fedpref.task import ONTOLOGY, Ignore, Projection, Structure, project, score

OPACITY, EFFUSION, ATELECTASIS = ONTOLOGY.diseases[:3]
RIGHT, LEFT = "right lung", "left lung"
EMPTY = Structure()


def says(*findings: tuple[str, str], diseases: tuple[str, ...] = ()) -> Projection:
    return Projection(Structure(diseases, findings), True, True, None, {})


def failed() -> Projection:
    return Projection(EMPTY, False, False, "no_object", {})


def test_best_and_worst_form_the_pair() -> None:
    target = Structure((), [(EFFUSION, RIGHT), (EFFUSION, LEFT)])
    pair = select_pair(
        {
            "wrong": says((OPACITY, RIGHT)),
            "half": says((EFFUSION, RIGHT)),
            "right": says((EFFUSION, RIGHT), (EFFUSION, LEFT)),
        },
        target,
    )
    assert pair is not None
    assert (pair.chosen_teacher, pair.rejected_teacher) == ("right", "wrong")
    assert pair.chosen == target
    # 0.70·1 + 0.25·1 + 0.05 against 0.05: no finding and no disease of "wrong" is right.
    assert pair.margin == 0.95


def test_ties_go_to_the_earliest_teacher_at_both_ends() -> None:
    target = Structure((), [(EFFUSION, RIGHT)])
    good, bad = says((EFFUSION, RIGHT)), says((EFFUSION, LEFT))
    pair = select_pair({"b": bad, "c": good, "a": bad, "d": good}, target)
    assert pair is not None
    assert (pair.chosen_teacher, pair.rejected_teacher) == ("c", "b")


def test_ineligible_candidates_take_no_part() -> None:
    target = Structure((), [(EFFUSION, RIGHT)])
    assert select_pair({"a": says((EFFUSION, RIGHT)), "b": failed()}, target) is None
    pair = select_pair(
        {"a": says((EFFUSION, RIGHT)), "b": failed(), "c": says((EFFUSION, LEFT))}, target
    )
    assert pair is not None
    assert pair.rejected_teacher == "c"


def test_no_candidates_form_no_pair() -> None:
    assert select_pair({}, EMPTY) is None


def test_equal_structures_form_no_pair() -> None:
    same = says((EFFUSION, LEFT))
    assert select_pair({"a": same, "b": same}, Structure((), [(EFFUSION, RIGHT)])) is None


def test_a_margin_of_exactly_the_limit_is_enough() -> None:
    # The target is empty: F1 is 1/(1+m) for m predicted positives.
    two = says((EFFUSION, RIGHT), (EFFUSION, LEFT))
    one = says((EFFUSION, RIGHT))
    # loc+dis 1/2 against 1/3, disease 1/2 on both sides: 0.70·(1/2 − 1/3) = 0.11666…7
    margin = 0.116666667
    pair = select_pair({"one": one, "two": two}, EMPTY, min_margin=margin)
    assert pair is not None
    assert pair.margin == margin
    assert select_pair({"one": one, "two": two}, EMPTY, min_margin=margin + 1e-9) is None


def test_one_tenth_survives_floating_point() -> None:
    # loc+dis F1 4/7 against 3/7, disease F1 equal: 0.70·(1/7) = 0.1, in floats 0.0999….
    effusions = [
        (EFFUSION, f"{side} {zone}")
        for side in ("right", "left")
        for zone in ("lung", "apical zone", "upper lung zone", "mid lung zone", "lower lung zone")
    ]
    target = Structure((), effusions[:5])  # five findings, all on the right
    # 2·tp/(2·tp+fp+fn): four right of nine given 8/14 = 4/7; three right of nine given 6/14 = 3/7.
    high = Structure((), [*effusions[:4], *effusions[5:10]])
    low = Structure((), [*effusions[:3], *effusions[5:10], (EFFUSION, "left hilar structures")])
    assert score(high, target).location_disease_f1 == pytest.approx(4 / 7)
    assert score(low, target).location_disease_f1 == pytest.approx(3 / 7)
    pair = select_pair(
        {"low": Projection(low, True, True, None), "high": Projection(high, True, True, None)},
        target,
        min_margin=0.10,
    )
    assert pair is not None
    assert pair.margin == 0.1


def test_a_margin_without_better_places_forms_no_pair() -> None:
    target = Structure((EFFUSION, OPACITY), ())
    # No target finding, none given: loc+dis F1 is 1 for both; disease F1 1 against 0.
    good = says(diseases=(EFFUSION, OPACITY))
    bad = says(diseases=(ATELECTASIS,))
    assert score(good.structure, target).composite - score(
        bad.structure, target
    ).composite == pytest.approx(0.25)
    assert select_pair({"good": good, "bad": bad}, target) is None


def test_an_ignored_disease_in_either_candidate_forms_no_pair() -> None:
    target = Structure((), [(EFFUSION, RIGHT)])
    ignore = Ignore(diseases=frozenset({OPACITY}))
    good, bad = says((EFFUSION, RIGHT)), says((EFFUSION, LEFT))
    assert select_pair({"a": good, "b": bad}, target, ignore=ignore) is not None
    also = says((EFFUSION, LEFT), (OPACITY, LEFT))
    assert select_pair({"a": good, "b": also}, target, ignore=ignore) is None
    good_also = says((EFFUSION, RIGHT), diseases=(OPACITY,))
    assert select_pair({"a": good_also, "b": bad}, target, ignore=ignore) is None


def test_an_ignored_disease_in_a_middling_candidate_matters_not() -> None:
    target = Structure((), [(EFFUSION, RIGHT), (ATELECTASIS, RIGHT)])
    ignore = Ignore(diseases=frozenset({OPACITY}))
    pair = select_pair(
        {
            "best": says((EFFUSION, RIGHT), (ATELECTASIS, RIGHT)),
            "middle": says((EFFUSION, RIGHT), (OPACITY, LEFT)),
            "worst": says((EFFUSION, LEFT)),
        },
        target,
        ignore=ignore,
    )
    assert pair is not None
    assert (pair.chosen_teacher, pair.rejected_teacher) == ("best", "worst")


def test_undecided_places_are_not_scored_but_stay_in_the_texts() -> None:
    target = Structure((EFFUSION,), [(ATELECTASIS, LEFT)])
    ignore = Ignore(locations_of=frozenset({EFFUSION}))
    good = says((EFFUSION, RIGHT), (ATELECTASIS, LEFT))
    pair = select_pair({"good": good, "bad": says((EFFUSION, LEFT))}, target, ignore=ignore)
    assert pair is not None
    assert (EFFUSION, RIGHT) in pair.chosen.findings
    assert pair.margin == pytest.approx(0.70 + 0.25 * (1 - 2 / 3))
    placed, unplaced = says((EFFUSION, RIGHT)), says(diseases=(EFFUSION,))
    assert select_pair({"a": placed, "b": unplaced}, target, ignore=ignore) is None


NAMES = st.sampled_from(ONTOLOGY.diseases[:4])
PLACES = st.sampled_from(ONTOLOGY.locations[:9])
STRUCTURES = st.builds(
    Structure, st.lists(NAMES, max_size=2), st.lists(st.tuples(NAMES, PLACES), max_size=3)
)
PROJECTIONS = st.builds(
    lambda s, ok: Projection(s, True, True, None) if ok else failed(), STRUCTURES, st.booleans()
)


@given(st.lists(PROJECTIONS, max_size=5), STRUCTURES, st.sets(NAMES, max_size=2))
def test_every_pair_keeps_the_rule(
    candidates: list[Projection], target: Structure, ignored: set[str]
) -> None:
    named = {f"teacher-{i}": c for i, c in enumerate(candidates)}
    ignore = Ignore(diseases=frozenset(ignored))
    pair = select_pair(named, target, ignore=ignore)
    if pair is None:
        return
    high, low = (score(s, target, ignore) for s in (pair.chosen, pair.rejected))
    assert high.location_disease_f1 > low.location_disease_f1
    assert pair.margin >= 0.10
    assert pair.margin == pytest.approx(high.composite - low.composite)
    assert not ignored & {*pair.chosen.diseases, *pair.rejected.diseases}
    for projection in named.values():
        if projection.eligible:
            other = score(projection.structure, target, ignore).composite
            assert low.composite - 1e-9 <= other <= high.composite + 1e-9
    assert isinstance(pair, Pair)
    for structure in (pair.chosen, pair.rejected):
        again = project(structure.to_json())
        assert again.strict
        assert json.loads(structure.to_json()) == again.structure.to_dict()
