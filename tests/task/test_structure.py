"""The canonical structure: closure, order, equality, JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.task import ONTOLOGY, Ignore, Ontology, Structure

findings = st.lists(
    st.tuples(st.sampled_from(ONTOLOGY.diseases), st.sampled_from(ONTOLOGY.locations))
)


def test_closure_and_canonical_order() -> None:
    structure = Structure(
        ["pneumonia"],
        [("atelectasis", "left apical zone"), ("lung opacity", "trachea")],
    )
    assert structure.diseases == ("lung opacity", "atelectasis", "pneumonia")
    assert structure.findings == (
        ("lung opacity", "trachea"),
        ("atelectasis", "left lung"),
        ("atelectasis", "left apical zone"),
    )


def test_json_form() -> None:
    structure = Structure([], [("pneumonia", "cardiac silhouette")])
    assert structure.to_json() == (
        '{"diseases":["pneumonia"],'
        '"findings":[{"disease":"pneumonia","location":"cardiac silhouette"}]}'
    )
    assert Structure().to_json() == '{"diseases":[],"findings":[]}'


@given(findings)
def test_round_trip_and_value_equality(pairs: list[tuple[str, str]]) -> None:
    structure = Structure([], pairs)
    again = Structure.from_json(structure.to_json())
    assert again == structure
    assert hash(again) == hash(structure)
    assert Structure(structure.diseases, reversed(structure.findings)) == structure


@pytest.mark.parametrize(
    ("diseases", "pairs"),
    [
        (["Pneumonia"], []),
        ([], [("pneumonia", "left")]),
        ([], [("edema", "left lung")]),
    ],
)
def test_unknown_names_are_refused(diseases: list[str], pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Structure(diseases, pairs)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"diseases":"pneumonia","findings":[]}', '{"diseases":[],"findings":[1]}'],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"structure|list"):
        Structure.from_json(text)


def test_another_ontology_with_two_levels() -> None:
    animals = Ontology(
        "z", ("worm", "tick"), ("head", "ear", "ear tip"), {"ear tip": "ear", "ear": "head"}
    )
    structure = Structure([], [("tick", "ear tip")], animals)
    assert structure.findings == (("tick", "head"), ("tick", "ear"), ("tick", "ear tip"))


def test_ignore_is_a_value() -> None:
    assert Ignore(["a", "b"]) == Ignore(frozenset({"b", "a"}))  # type: ignore[arg-type]
    assert not Ignore()
    assert Ignore(locations_of=frozenset({"a"}))
