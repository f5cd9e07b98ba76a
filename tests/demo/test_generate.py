import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpref.demo.cases import CaseFinding, Place, annotation, sample_case
from fedpref.demo.generate import SiteStyle, render, sample_report, sample_style
from fedpref.demo.phrases import HEDGED, PRESENT, RESOLVED, TERMS, UNCHANGED
from fedpref.demo.styles import STYLES
from fedpref.task import ONTOLOGY, Structure

SEEDS = st.integers(0, 2**32 - 1)
BARE = {
    "layouts": (("prose", 1.0),), "hedged": 0.0, "unchanged": 0.0, "improved": 0.0,
    "unusual_terms": 0.0, "modifiers": 0.0, "short_forms": 0.0, "place_behind": 0.0,
    "denials_mean": 0.0, "priors_mean": 0.0, "history": 0.0, "distractors_mean": 0.0,
    "capitals": 0.0, "lower_case": 0.0, "glued": 0.0,
}  # fmt: skip


def one_finding(**habits):
    """Many wordings of one right-sided apical pneumothorax, with nothing else but normal lines."""
    style = SiteStyle(name="bare", **{**BARE, **habits})
    case = (CaseFinding("pneumothorax", Place("right", "apical zone")),)
    return [render(case, style, np.random.default_rng(seed)) for seed in range(60)]


def test_one_finding_is_worded_by_its_template_and_annotated_with_its_parent():
    target = Structure((), [("pneumothorax", "right apical zone")])
    assert target.findings == (
        ("pneumothorax", "right lung"),
        ("pneumothorax", "right apical zone"),
    )
    phrase = "right apical pneumothorax"
    written = {t.format(x=phrase, X=phrase.capitalize()) for t in PRESENT}
    reports = one_finding()
    assert all(report.structure == target for report in reports)
    seen = {s for s in written if any(s in report.text for report in reports)}
    assert len(seen) > len(written) / 2


@pytest.mark.parametrize(("habit", "templates"), [("hedged", HEDGED), ("unchanged", UNCHANGED)])
def test_a_hedge_or_a_pseudo_denial_leaves_the_annotation_as_it_is(habit, templates):
    phrase = "right apical pneumothorax"
    written = {t.format(x=phrase, X=phrase.capitalize()) for t in templates}
    for report in one_finding(**{habit: 1.0}):
        assert any(sentence in report.text for sentence in written)
        assert report.structure.diseases == ("pneumothorax",)
        assert report.mentions[0].status == habit
        assert report.mentions[0].positive


def test_what_has_resolved_is_worded_but_not_annotated():
    case = (CaseFinding("pleural effusion", Place("left", "lung")),)
    style = SiteStyle(name="bare", **{**BARE, "priors_mean": 3.0})
    gone = 0
    for seed in range(60):
        report = render(case, style, np.random.default_rng(seed))
        assert report.structure.findings == (("pleural effusion", "left lung"),)
        for mention in report.mentions:
            if mention.status == "resolved":
                gone += 1
                assert (mention.disease, mention.place.side) != ("pleural effusion", "left")
                assert mention.place.side != "both" or mention.disease != "pleural effusion"
    assert gone > 100
    assert all("{x}" in t or "{X}" in t for t in RESOLVED)


def test_a_proposed_cause_shares_the_place_of_what_it_explains():
    place = Place("left", "mid lung zone")
    case = (CaseFinding("lung opacity", place), CaseFinding("pneumonia", place, proposed=True))
    report = render(case, SiteStyle(name="bare", **BARE), np.random.default_rng(3))
    assert report.structure.findings == (
        ("lung opacity", "left lung"),
        ("lung opacity", "left mid lung zone"),
        ("pneumonia", "left lung"),
        ("pneumonia", "left mid lung zone"),
    )
    assert [mention.status for mention in report.mentions][:2] == ["present", "hedged"]


def test_no_place_and_both_sides():
    assert annotation([CaseFinding("atelectasis", Place())]) == Structure(["atelectasis"])
    assert Place("both", "lower lung zone").locations == (
        "right lower lung zone",
        "left lower lung zone",
    )
    assert Place("", "trachea").locations == ("trachea",)


@given(SEEDS)
def test_the_annotation_is_what_the_positive_mentions_say(seed):
    rng = np.random.default_rng(seed)
    report = sample_report(rng, sample_style(rng))
    positive = [mention for mention in report.mentions if mention.positive]
    assert report.structure == Structure(
        [mention.disease for mention in positive],
        [(mention.disease, where) for mention in positive for where in mention.place.locations],
    )
    assert report.text.strip() == report.text != ""
    assert "{" not in report.text


@given(SEEDS)
def test_nothing_present_is_denied_at_the_same_place(seed):
    rng = np.random.default_rng(seed)
    report = sample_report(rng, sample_style(rng))
    for mention in report.mentions:
        if not mention.positive:
            said = {(mention.disease, where) for where in mention.place.locations}
            assert not said & set(report.structure.findings)
            assert mention.status == "resolved" or mention.disease not in report.structure.diseases


@given(SEEDS)
@settings(max_examples=30)
def test_the_seed_decides_everything(seed):
    first, second = (
        [sample_report(rng, style) for style in STYLES]
        for rng in (np.random.default_rng(seed), np.random.default_rng(seed))
    )
    assert first == second
    assert len({report.text for report in first}) > 1


def test_every_name_of_the_ontology_occurs_and_reports_are_short():
    rng = np.random.default_rng(0)
    cases = [sample_case(rng) for _ in range(2000)]
    structures = [annotation(case) for case in cases]
    assert {d for s in structures for d in s.diseases} == set(ONTOLOGY.diseases) == set(TERMS)
    assert {where for s in structures for _, where in s.findings} == set(ONTOLOGY.locations)
    assert any(s.diseases and not s.findings for s in structures)
    assert 0.1 < sum(not s.diseases for s in structures) / len(structures) < 0.3
    for style in STYLES:
        lengths = [len(render(case, style, rng).text.split()) for case in cases[:300]]
        assert 15 < np.median(lengths) < 60, style.name


def test_sites_write_differently():
    rng = np.random.default_rng(1)
    cases = [sample_case(rng) for _ in range(300)]
    words = [
        {word for case in cases for word in render(case, style, rng).text.split()}
        for style in STYLES
    ]
    assert "RLL" in words[2]
    assert "RLL" not in words[4] or len(words[2] - words[4]) > 30
    assert len({style.name for style in STYLES}) == len(STYLES) == 6
