"""The rule teachers on messy text: what each must read, and what none may do."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.errors import ConfigError
from fedpref.preference.teachers.lexicon import load_lexicon
from fedpref.preference.teachers.rules import HABITS, rule_teacher
from fedpref.task import ONTOLOGY, Structure, project

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "messy_cases.jsonl").read_text("utf-8").splitlines()
]
OPACITY, EFFUSION, ATELECTASIS, HEART, EDEMA, PTX, CONSOLIDATION, FAILURE, PNEUMONIA = (
    ONTOLOGY.diseases
)


def read(text: str, teacher: str = "careful") -> set[tuple[str, str]]:
    return set(rule_teacher(teacher).read(text).findings)


def test_all_messy_cases_are_here() -> None:
    assert len(CASES) == 24


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_careful_reads_messy_text(case: dict[str, object]) -> None:
    found = read(str(case["text"]))
    must = {tuple(pair) for pair in case["must"]}  # type: ignore[attr-defined]
    may = {tuple(pair) for pair in case["may"]}  # type: ignore[attr-defined]
    assert must <= found <= must | may


def located(disease: str, *locations: str) -> set[tuple[str, str]]:
    return set(Structure((), [(disease, where) for where in locations]).findings)


SENTENCES = [
    # Scope of a denial.
    ("No change in the left effusion.", located(EFFUSION, "left lung")),
    ("No pneumothorax, small right effusion.", located(EFFUSION, "right lung")),
    ("No consolidation, pneumothorax or large effusion on the right.", set()),
    ("Lungs clear without effusion, edema, or left pneumothorax.", set()),
    ("No effusion. Left pneumothorax.", located(PTX, "left lung")),
    ("Right pneumothorax has resolved.", set()),
    ("Resolved left pneumothorax.", set()),
    ("Right pneumothorax is nearly resolved.", located(PTX, "right lung")),
    ("Right base nonspecific opacity.", located(OPACITY, "right lower lung zone")),
    # Places.
    (
        "Small right effusion and left basilar atelectasis.",
        located(EFFUSION, "right lung") | located(ATELECTASIS, "left lower lung zone"),
    ),
    (
        "Opacity in the right upper lobe and left base, may represent pneumonia.",
        located(OPACITY, "right upper lung zone", "left lower lung zone")
        | located(PNEUMONIA, "right upper lung zone", "left lower lung zone"),
    ),
    (
        "Opacity in the right apex and left effusion.",
        located(OPACITY, "right apical zone") | located(EFFUSION, "left lung"),
    ),
    ("Atelectasis in the base of the right lung.", located(ATELECTASIS, "right lower lung zone")),
    (
        "Bibasilar consolidation, left greater than right.",
        located(CONSOLIDATION, "left lower lung zone", "right lower lung zone"),
    ),
    (
        "Right upper and lower lobe opacities.",
        located(OPACITY, "right upper lung zone", "right lower lung zone"),
    ),
    ("RML and lingular infiltrate.", located(OPACITY, "right mid lung zone", "left mid lung zone")),
    (
        "Left PICC. Right granuloma, consolidation at the left base.",
        located(CONSOLIDATION, "left lower lung zone"),
    ),
    ("Opacity in the upper mediastinum.", located(OPACITY, "upper mediastinum")),
    # The heart.
    ("The heart is mildly enlarged.", located(HEART, "cardiac silhouette")),
    ("Heart size is normal. Enlarged lymph nodes.", set()),
    ("The heart is normal and the hila are enlarged.", set()),
    ("Borderline cardiomegaly.", set()),
    # Shorthand, marks, wrapped lines, sections.
    ("L>R effs.", located(EFFUSION, "left lung", "right lung")),
    ("Opacity in the left\n lower\n lobe.", located(OPACITY, "left lower lung zone")),
    ("INDICATION: Left pneumothorax?\n\nRight effusion.", located(EFFUSION, "right lung")),
    ("INDICATION: Left effusion.\nCOMPARISON: None.\nFINDINGS: Clear.", set()),
    ("INDICATION: Pneumonia.\n1. Enlarged heart.", located(HEART, "cardiac silhouette")),
]


@pytest.mark.parametrize(("text", "expected"), SENTENCES, ids=[text for text, _ in SENTENCES])
def test_careful_reads(text: str, expected: set[tuple[str, str]]) -> None:
    assert read(text) == expected


def test_heart_failure_has_no_place_and_still_counts() -> None:
    structure = rule_teacher("careful").read("Left effusion and CHF.")
    assert structure.diseases == (EFFUSION, FAILURE)
    assert FAILURE not in {disease for disease, _ in structure.findings}


def test_habits_differ_as_they_say() -> None:
    base = "Right lower lobe infiltrate."
    assert read(base, "coarse") == {(OPACITY, "right lung")}
    assert read(base, "literal") == set()  # not its word
    listed = "No consolidation, pneumothorax, pulmonary edema, or moderately sized left effusion."
    assert read(listed, "careful") == read(listed, "literal") == set()
    assert (EFFUSION, "left lung") in read(listed, "eager")  # its denials do not reach so far
    change = "No change in the left pleural effusion."
    assert read(change, "literal") == set()  # knows no pseudo-denial
    two = "Right pneumothorax and left effusion."
    assert read(two, "eager") == {
        (disease, side) for disease in (PTX, EFFUSION) for side in ("right lung", "left lung")
    }


def test_styles_make_strict_and_eligible_differ() -> None:
    text = "Left effusion."
    outputs = {name: project(rule_teacher(name).extract([text])[0]) for name in HABITS}
    assert {name: output.strict for name, output in outputs.items()} == {
        "careful": True,
        "coarse": False,
        "literal": True,
        "eager": False,
    }
    assert all(output.eligible for output in outputs.values())
    assert outputs["eager"].dropped


def test_a_teacher_that_says_too_much_is_cut_off() -> None:
    text = ". ".join(
        f"{side} {zone} {what}"
        for side in ("Left", "Right")
        for zone in ("apical", "upper lobe", "mid lung", "base", "hilar")
        for what in ("opacity", "atelectasis", "consolidation")
    )
    assert project(rule_teacher("eager").extract([text])[0]).failure == "no_object"


def test_every_teacher_writes_only_names_of_the_ontology() -> None:
    lexicon = load_lexicon()
    zones = set(lexicon.raw["places"]["zones"])
    for phrases in (
        *lexicon.raw["places"]["sides"].values(),
        *lexicon.raw["places"]["both_in_one"].values(),
    ):
        zones |= {zone for _, _, zone in (p.partition(":") for p in phrases) if zone}
    for zone_list in lexicon.raw["places"]["pairs"].values():
        zones |= set(zone_list)
    names = {f"{side} {zone}" for side in ("left", "right") for zone in zones}
    names |= set(lexicon.raw["places"]["midline"])
    assert names <= set(ONTOLOGY.locations)
    assert set(lexicon.raw["diseases"]) == set(ONTOLOGY.diseases)


def test_digests_tell_teachers_apart_and_stay() -> None:
    digests = {name: rule_teacher(name).digest for name in HABITS}
    assert len(set(digests.values())) == len(HABITS) == 4
    assert digests == {name: rule_teacher(name).digest for name in HABITS}


def test_an_unknown_rule_teacher_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'carefull'.*careful, coarse, literal, eager"):
        rule_teacher("carefull")


PIECES = st.sampled_from(
    ["no ", "left ", "right ", "base ", "effusion", ", ", ". ", "\n", "and ", "resolved ", "heart ",
     "enlarged ", "R ", "1.", ":", "-", "FINDINGS:", "INDICATION: ", "opacity ", "in ", "or "]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join)), st.sampled_from([*HABITS]))
def test_no_text_makes_a_teacher_fail(text: str, name: str) -> None:
    teacher = rule_teacher(name)
    first, second = teacher.extract([text, text])
    assert first == second
    projection = project(first)
    assert projection.eligible or name == "eager"
    if projection.eligible:
        assert projection.structure == teacher.read(text)


@pytest.mark.parametrize("name", HABITS)
def test_time_is_linear(name: str) -> None:
    teacher = rule_teacher(name)
    for unit in (
        "left opacity ",
        "right base, ",
        "no effusion absent ",
        "heart enlarged ",
        "1.",
        "(",
    ):
        seconds = []
        for size in (8_000, 64_000):
            start = time.process_time()
            teacher.extract([unit * (size // len(unit))])
            seconds.append(time.process_time() - start)
        # Eight times the text; quadratic time would take 64 times as long.
        assert seconds[1] < 24 * seconds[0] + 0.5, unit
