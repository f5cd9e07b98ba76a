"""Rule teachers: four readers of report text with different skill and different habits.

They need no model, so that the whole method runs anywhere. They read real reports, but they are
demonstration labellers: nothing they say is a statement about a patient.

- careful: synonyms, scope of denials, a place per term, hedges count as present, resolved do not.
- coarse: reads like careful, but knows only whole lungs, and fences its answer in Markdown.
- literal: few words, any denial word denies the rest of the sentence, a place only beside the term.
- eager: suggestive words count, denials hardly reach, all places of a sentence go to all its
  terms; it talks around its answer, invents names, and is cut off when it has much to say.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final, Literal

from fedpref.errors import ConfigError
from fedpref.hashing import digest
from fedpref.preference.teachers.denial import in_scope, in_sentence, when_near
from fedpref.preference.teachers.lexicon import Lexicon, load_lexicon, phrase_table
from fedpref.preference.teachers.phrases import PhraseTable, Span, gap, nearest
from fedpref.preference.teachers.places import (
    Grammar,
    Place,
    Term,
    attach,
    attach_beside,
    read_places,
)
from fedpref.preference.teachers.sentences import Sentence, sentences
from fedpref.task import Structure

VERSION: Final = 1  # part of the digest: raise it when reading changes without the lexicon
SUBJECT_REACH: Final = 8  # words between "heart" and "enlarged"
EAGER_LIMIT: Final = 900  # characters after which the eager teacher is cut off
_UNPLACED = frozenset({"fluid overload/heart failure"})
_SILHOUETTE = "cardiac silhouette"


@dataclass(frozen=True)
class Habits:
    """What makes one rule teacher differ from another."""

    tiers: tuple[str, ...]
    denial: Literal["scope", "sentence", "near"]
    placing: Literal["clause", "beside", "sentence"]
    zones: bool = True
    borderline_counts: bool = False
    inherits: bool = False
    style: Literal["bare", "fenced", "talkative"] = "bare"


HABITS: Final[dict[str, Habits]] = {
    "careful": Habits(("exact", "common"), "scope", "clause", inherits=True),
    "coarse": Habits(
        ("exact", "common"), "scope", "clause", zones=False, inherits=True, style="fenced"
    ),
    "literal": Habits(("exact",), "sentence", "beside"),
    "eager": Habits(
        ("exact", "common", "wide"),
        "near",
        "sentence",
        borderline_counts=True,
        style="talkative",
    ),
}


@dataclass(frozen=True)
class RuleTeacher:
    """A teacher that reads by rules and a lexicon; deterministic, linear time, never raises."""

    name: str
    habits: Habits

    @cached_property
    def digest(self) -> str:
        """Return the content hash of the lexicon, the habits and the reading's version."""
        return digest([VERSION, load_lexicon().digest, self.name, asdict(self.habits)])

    def extract(self, texts: Sequence[str]) -> list[str]:
        """Return one completion per report text, in order."""
        return [_say(self.read(text), self.habits.style) for text in texts]

    def read(self, text: str) -> Structure:
        """Return what this teacher takes the report to say."""
        lexicon = load_lexicon()
        read = sentences(
            text,
            sections=lexicon.sections,
            abbreviations=lexicon.abbreviations,
            correct=lexicon.spelling.correct,
        )
        diseases: set[str] = set()
        findings: set[tuple[str, str]] = set()
        before: list[Place] = []
        for sentence in read:
            statements, before = self._statements(sentence, before)
            for disease, places in statements:
                diseases.add(disease)
                findings.update((disease, name) for name in self._locations(disease, places))
        return Structure(diseases, findings)

    def _statements(
        self, words: Sentence, before: list[Place]
    ) -> tuple[list[tuple[str, list[Place]]], list[Place]]:
        """Return the sentence's (disease, places), and the places it leaves for the next one.

        `before` are the places of the sentence before it.
        """
        lexicon = load_lexicon()
        spans = self._spans(words)
        asserted = self._asserted(words, spans)
        terms = [Term(span) for span in spans if span.kind in ("finding", "noun")]
        places = [s for s in spans if s.kind in ("side", "zone", "place") and asserted[s.start]]
        if self.habits.placing == "sentence":
            own = [read_places(places)] * len(terms)
        else:
            if self.habits.placing == "clause":
                attach(words, terms, places, self._grammar)
            else:
                attach_beside(terms, places)
            own = [read_places(term.places) for term in terms]
        anaphor = not set(words).isdisjoint(lexicon.words("grammar", "anaphors"))
        if self.habits.inherits:
            own = _inherit(words, own, terms, before if not places and anaphor else [])
        said = [
            (disease, where)
            for term, where in zip(terms, own, strict=True)
            if term.span.kind == "finding" and asserted[term.span.start]
            for disease in term.span.value
        ]
        left = list(dict.fromkeys(place for where in own for place in where))
        return said, left or read_places(places) or (before if anaphor else [])

    def _spans(self, words: Sentence) -> list[Span]:
        """Return the phrases found, with an enlarged heart made one finding."""
        heart = load_lexicon().raw["heart"]
        spans = self._table.find(words)
        # "The hila are enlarged": a place may be what is enlarged, too.
        named = [s for s in spans if s.kind in ("subject", "other") or _is_hilar(s)]
        borderline = [s for s in spans if s.kind == "borderline"]
        reach = heart["borderline_reach"]
        kept: list[Span] = []
        for span in spans:
            found = span
            if span.kind == "predicate":
                subject = nearest(named, span)
                if subject is None or subject.kind != "subject":
                    continue
                if gap(subject, span) > SUBJECT_REACH:
                    continue
                found = Span("finding", (heart["disease"],), span.start, span.end)
            if (
                found.kind == "finding"
                and found.value == (heart["disease"],)
                and not self.habits.borderline_counts
                and (unsure := nearest(borderline, found)) is not None
                and gap(unsure, found) < reach
            ):
                continue
            kept.append(found)
        return kept

    def _asserted(self, words: Sentence, spans: Sequence[Span]) -> dict[int, bool]:
        if self.habits.denial == "scope":
            denial = load_lexicon().raw["denial"]
            return in_scope(words, spans, resume=denial["resume"], go_on=denial["list_words"])
        return in_sentence(spans) if self.habits.denial == "sentence" else when_near(spans)

    def _locations(self, disease: str, places: Sequence[Place]) -> list[str]:
        if disease in _UNPLACED:
            return []
        if disease == load_lexicon().raw["heart"]["disease"]:
            return [_SILHOUETTE]
        if not self.habits.zones:
            return [f"{side} lung" for side, _ in places if side]
        return [f"{side} {zone or 'lung'}".strip() for side, zone in places]

    @cached_property
    def _table(self) -> PhraseTable:
        return phrase_table(load_lexicon(), self.habits.tiers)

    @cached_property
    def _grammar(self) -> Grammar:
        return _grammar(load_lexicon())


def _grammar(lexicon: Lexicon) -> Grammar:
    names = ("prepositions", "links", "fillers", "separators")
    return Grammar(*(frozenset(lexicon.words("grammar", name)) for name in names))


def _is_hilar(span: Span) -> bool:
    return span.kind in ("place", "zone") and any("hilar" in value for value in span.value)


def _inherit(
    words: Sequence[str], own: list[list[Place]], terms: Sequence[Term], before: list[Place]
) -> list[list[Place]]:
    """Return the places, where a term without any takes its neighbour's, or the last sentence's.

    "Right base opacity, may represent pneumonia"; "atelectasis or infiltrate in the left base";
    "The right base is abnormal. There is atelectasis there." Another noun passes its place on only
    as an alternative: "left base scarring or atelectasis".
    """
    alternatives = frozenset(load_lexicon().words("grammar", "alternatives"))
    places = list(own)
    passes_on = [term.span.kind == "finding" for term in terms]
    for at in range(1, len(places)):
        between = words[terms[at - 1].span.end : terms[at].span.start]
        if not places[at] and (passes_on[at - 1] or set(between) <= alternatives):
            places[at] = places[at - 1]
            passes_on[at] = True
    for at in range(len(places) - 2, -1, -1):
        if not places[at]:
            places[at] = places[at + 1]
    return [where or before for where in places]


def _say(structure: Structure, style: str) -> str:
    """Return the completion in which a teacher of this style gives its structure."""
    if style == "bare":
        return structure.to_json()
    if style == "fenced":
        return f"```json\n{json.dumps(structure.to_dict(), indent=2, ensure_ascii=False)}\n```"
    value = structure.to_dict()
    if not structure.diseases:
        return structure.to_json()
    # Names outside the vocabulary: projection drops and counts them.
    value["diseases"].append("abnormal chest radiograph")
    value["findings"].append({"disease": structure.diseases[0], "location": "lung"})
    answer = f"Here is the extraction:\n{json.dumps(value, indent=1, ensure_ascii=False)}"
    return answer[:EAGER_LIMIT]


def rule_teacher(name: str) -> RuleTeacher:
    """Return the rule teacher of that name; ConfigError naming the known ones."""
    if name not in HABITS:
        raise ConfigError(
            f"there is no rule teacher {name!r}", fix=f"choose among {', '.join(HABITS)}"
        )
    return RuleTeacher(name, HABITS[name])
