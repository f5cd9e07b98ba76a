"""Projection: the rules of the task contract, and texts that broke other parsers."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.task import ONTOLOGY, Structure, project

EMPTY = '{"diseases":[],"findings":[]}'
ANSWER = '{"diseases":["pneumonia"],"findings":[{"disease":"pneumonia","location":"left lung"}]}'
PNEUMONIA = Structure(["pneumonia"], [("pneumonia", "left lung")])


def with_note(note: str) -> str:
    """An answer with an extra key that holds a string; `note` is JSON-escaped already."""
    return f'{{"note":"{note}",{ANSWER[1:]}'


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"```json\n{ANSWER}\n```",
        f'The 5" nodule: {ANSWER}',  # D2: a lone quote in prose
        f"see {{ref}} then {ANSWER} and {{x}}",  # D3
        f"{{'single': 1}} {ANSWER}",
        with_note("size } 3 mm") + " and prose",  # D1: a brace in a string
        with_note("a { b"),
        with_note('quote \\" and brace }'),
        with_note("```json"),  # D5: a fence inside a string
        f"```\n{with_note('``` fence')}\n```",
        with_note("</think>"),  # D10: the tag inside a JSON string is text
        f'draft {{"a":1}}</think>{ANSWER}',
        f"<think>first {EMPTY} no</think>{ANSWER}",
        f"<think>a</think>{EMPTY}<think>b</think> {ANSWER}",
        f"draft {{ never closed </think>{ANSWER}",
        f"\ufeff{ANSWER}",
        f"\u00a0{ANSWER}\u00a0",
        f"json {ANSWER} json",  # D16
        f"“smart” quotes, then {ANSWER}",
        f"[{ANSWER}]",
    ],
)
def test_finds_the_object(text: str) -> None:
    projection = project(text)
    assert projection.failure is None
    assert projection.eligible
    assert projection.structure == PNEUMONIA


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", "no_object"),
        ("null", "no_object"),
        ("[]", "no_object"),
        ('"text"', "no_object"),
        ("5", "no_object"),
        ("{", "no_object"),
        (ANSWER[:-1], "no_object"),
        (f"{{ {ANSWER}", "no_object"),  # a brace that never closes ends the search
        (f'{{" {ANSWER}', "no_object"),
        ('{"diseases":[],"findings":[],}', "no_object"),  # D8: trailing commas are not repaired
        ('{"a":"x,}",}', "no_object"),
        ("{'diseases':[],'findings':[]}", "no_object"),
        ("{“diseases”:[],“findings”:[]}", "no_object"),
        (f"<think>{ANSWER}", "no_object"),
        (f"</think><think>{ANSWER}", "no_object"),
        (f"{ANSWER}</think>", "no_object"),
        ("{}", "missing_key"),
        ('{"diseases":[]}', "missing_key"),
        (f'{{"a":1}} {ANSWER}', "missing_key"),  # the first JSON span decides
        ('{"diseases":{},"findings":[]}', "not_a_list"),
        ('{"diseases":[],"findings":null}', "not_a_list"),
        ('{"edema":"no","edema":"yes"}', "duplicate_key"),  # D6
        (f'{{"a":{{"b":1,"b":1}},{ANSWER[1:]}', "duplicate_key"),
        ('{"a":1,"\\u0061":1}', "duplicate_key"),
        ('{"a":NaN}', "non_finite"),  # D7
        ('{"a":Infinity}', "non_finite"),
        ('{"a":-Infinity}', "non_finite"),
        ('{"a":1e999}', "non_finite"),
        (f'{{"a":{"9" * 5000}}}', "non_finite"),
        (f'{{"a":{"[" * 100_000}', "too_deep"),  # D12
        (f'{{"a":{"[" * 100_000}{"]" * 100_000}}}', "too_deep"),
        (f'{{"a":{"[" * 100}{"]" * 100}}}', "too_deep"),
        (f'{{"a":{"[" * 99}{"]" * 99}}}', "missing_key"),
    ],
)
def test_failures(text: str, failure: str) -> None:
    projection = project(text)
    assert projection.failure == failure
    assert not projection.eligible
    assert not projection.strict
    assert projection.structure == Structure()
    assert projection.dropped == {}


def test_a_fault_inside_something_that_is_no_json_does_not_decide() -> None:
    assert project(f'{{"x":{{"a":1,"a":NaN}} oops}} {ANSWER}').structure == PNEUMONIA


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        (ANSWER, True),
        (f" \n{ANSWER}\n", True),
        (with_note("x"), True),
        (f"```\n{ANSWER}\n```", False),
        (f"{ANSWER}.", False),
        (f"<think></think>{ANSWER}", False),
        (f"\ufeff{ANSWER}", False),
    ],
)
def test_strict_means_the_whole_text(text: str, strict: bool) -> None:
    projection = project(text)
    assert projection.eligible
    assert projection.strict is strict


def test_unknown_and_malformed_entries_are_dropped_and_counted() -> None:
    text = json.dumps(
        {
            "diseases": ["Pneumonia", "atelectasis", 3, None, "atelectasis "],
            "findings": [
                {"disease": "consolidation", "location": "left apical zone", "sure": True},
                {"disease": "consolidation", "location": "Left lung"},
                {"disease": "edema", "location": "left lung"},
                {"disease": "pneumothorax"},
                {"disease": "pneumothorax", "location": ["left lung"]},
                "pneumothorax",
            ],
            "comment": 1,
            "more": {"findings": []},
        }
    )
    projection = project(text)
    assert projection.structure == Structure(
        ["atelectasis"], [("consolidation", "left apical zone")]
    )
    assert projection.structure.diseases == ("atelectasis", "consolidation")
    assert projection.dropped == {
        "extra_keys": 2,
        "unknown_diseases": 2,
        "malformed_diseases": 2,
        "unknown_findings": 2,
        "malformed_findings": 3,
        "extra_finding_keys": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        "[" * 1_000_000,
        '{"a":' + "[" * 1_000_000,
        '"' * 1_000_000,
        "{" + '"' * 1_000_000,
        "\\" * 1_000_000,
        '{"' + "\\" * 1_000_000,
        "{x}" * 300_000,
        '{"' * 500_000,
        "</think>{}" * 100_000,
    ],
    ids=lambda text: f"{text[:12]}…",
)
def test_a_megabyte_of_anything_is_fast_and_never_raises(text: str) -> None:
    # A guard against quadratic time (minutes), far above what a linear pass takes.
    start = time.process_time()
    assert project(text).structure == Structure()
    assert time.process_time() - start < 5


names = st.sampled_from(ONTOLOGY.diseases)
structures = st.builds(
    Structure,
    st.lists(names),
    st.lists(st.tuples(names, st.sampled_from(ONTOLOGY.locations))),
)
pieces = st.sampled_from(
    ["{", "}", "[", "]", '"', "\\", ":", ",", "<think>", "</think>", "NaN", "1e999", "a", " ",
     EMPTY, '"diseases":[]', '"findings":[]', '{"a":', "\ud800", "\u2028"]
)  # fmt: skip


@given(structures)
def test_idempotent_on_canonical_json(structure: Structure) -> None:
    projection = project(structure.to_json())
    assert projection.structure == structure
    assert projection.strict
    assert projection.dropped == {}


@given(st.lists(pieces).map("".join) | st.text())
def test_total_on_any_text(text: str) -> None:
    projection = project(text)
    assert projection.eligible is (projection.failure is None)
    assert projection.eligible or not projection.strict
    assert project(projection.structure.to_json()).structure == projection.structure


@given(structures, st.text(st.characters(exclude_characters='{}<"'), max_size=30))
def test_prose_around_the_object_changes_nothing(structure: Structure, prose: str) -> None:
    assert project(f"{prose}{structure.to_json()}{prose}").structure == structure
