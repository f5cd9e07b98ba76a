"""Synthetic chest X-ray reports whose annotation is known because it was there first.

A case is drawn, then put into words in the style of a site. The annotation is the case; nothing is
ever parsed. Reports are invented and labelled synthetic wherever they are shown: they say nothing
about medicine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from fedpref.demo import phrases as words
from fedpref.demo.cases import Case, CaseFinding, Place, annotation, sample_case, sample_place
from fedpref.task import Structure

Status = Literal[
    "present", "hedged", "unchanged", "improved", "denied", "resolved", "historical"
]  # fmt: skip
POSITIVE: Final = frozenset({"present", "hedged", "unchanged", "improved"})
Layout = Literal["prose", "sections", "impression", "list"]


@dataclass(frozen=True)
class SiteStyle:
    """Habits of a site's reports. Rates are probabilities, `*_mean` expected numbers a report."""

    name: str
    layouts: tuple[tuple[Layout, float], ...] = (
        ("prose", 0.4), ("sections", 0.3), ("impression", 0.15), ("list", 0.15),
    )  # fmt: skip
    hedged: float = 0.25
    unchanged: float = 0.12
    improved: float = 0.08
    unusual_terms: float = 0.3
    modifiers: float = 0.5
    short_forms: float = 0.1
    place_behind: float = 0.5
    denials_mean: float = 1.0
    priors_mean: float = 0.4
    history: float = 0.12
    distractors_mean: float = 1.0
    capitals: float = 0.03
    lower_case: float = 0.02
    glued: float = 0.02
    repeats: float = 0.5


@dataclass(frozen=True)
class Mention:
    """One place in the text where a disease is spoken of, and how."""

    disease: str
    place: Place
    status: Status

    @property
    def positive(self) -> bool:
        """Return whether the task counts this mention as a finding."""
        return self.status in POSITIVE


@dataclass(frozen=True)
class SyntheticReport:
    """A generated report, its exact annotation, and every mention in it, denied ones included."""

    text: str
    structure: Structure
    mentions: tuple[Mention, ...]


def sample_report(rng: np.random.Generator, style: SiteStyle) -> SyntheticReport:
    """Return a report of a random case in the given style."""
    return render(sample_case(rng), style, rng)


def sample_style(rng: np.random.Generator) -> SiteStyle:
    """Return a style of no site in particular: every habit is drawn over a wide range."""
    layouts: tuple[Layout, ...] = ("prose", "sections", "impression", "list")
    shares = rng.dirichlet(np.ones(len(layouts)))
    return SiteStyle(
        name="generic",
        layouts=tuple((name, float(share)) for name, share in zip(layouts, shares, strict=True)),
        hedged=rng.uniform(0.05, 0.5),
        unchanged=rng.uniform(0, 0.25),
        improved=rng.uniform(0, 0.15),
        unusual_terms=rng.uniform(0, 0.7),
        modifiers=rng.uniform(0.2, 0.8),
        short_forms=rng.uniform(0, 0.5),
        place_behind=rng.uniform(0.1, 0.9),
        denials_mean=rng.uniform(0.2, 2.0),
        priors_mean=rng.uniform(0, 0.9),
        history=rng.uniform(0, 0.3),
        distractors_mean=rng.uniform(0, 2.0),
        capitals=0.04,
        lower_case=0.04,
        glued=0.03,
        repeats=rng.uniform(0.2, 0.8),
    )


def render(case: Case, style: SiteStyle, rng: np.random.Generator) -> SyntheticReport:
    """Return the case in words; only `rng` decides among the possible wordings."""
    writer = _Writer(style, rng)
    return SyntheticReport(writer.report(case), annotation(case), tuple(writer.mentions))


class _Writer:
    """Writes one report and keeps a list of what it mentioned."""

    def __init__(self, style: SiteStyle, rng: np.random.Generator) -> None:
        self.style, self.rng = style, rng
        self.mentions: list[Mention] = []
        self._taken: set[str] = set()

    def report(self, case: Case) -> str:
        self._taken = {finding.disease for finding in case}
        sentences = self._positive_sentences(case)
        sentences += self._negative_sentences(case)
        sentences += self._some(words.DISTRACTORS, self.rng.poisson(self.style.distractors_mean))
        if not sentences:
            sentences = self._some(words.LUNGS_CLEAR, 1)
        sentences = [sentences[i] for i in self.rng.permutation(len(sentences))]
        text = self._laid_out(sentences, case)
        if self._happens(self.style.glued):
            text = text.replace(". ", ".", 1)
        if self._happens(self.style.capitals):
            return text.upper()
        return text.lower() if self._happens(self.style.lower_case) else text

    # What is there.

    def _positive_sentences(self, case: Case) -> list[str]:
        sentences, position = [], 0
        while position < len(case):
            finding = case[position]
            cause = case[position + 1] if position + 1 < len(case) else None
            if cause is not None and cause.proposed:
                sentences.append(self._proposed(finding, cause))
                position += 2
            else:
                sentences.append(self._positive(finding))
                position += 1
        return sentences

    def _positive(self, finding: CaseFinding) -> str:
        status = self._status()
        self._note(finding.disease, finding.place, status)
        if finding.disease == words.HEART and self._happens(0.5):
            if status == "present":
                return self._one(words.HEART_PRESENT)
            if status == "hedged":
                return self._one(words.HEART_HEDGED)
        templates = {
            "present": words.PRESENT,
            "hedged": words.HEDGED,
            "unchanged": words.UNCHANGED,
            "improved": words.IMPROVED,
        }[status]
        phrase = self._phrase(finding.disease, finding.place)
        absent = self._absent_disease([finding.disease])
        if status == "present" and absent and self._happens(0.15):
            self._note(absent, Place(), "denied")
            return _filled(self._one(words.BUT), x=phrase, t=self._term(absent))
        return _filled(self._one(templates), x=phrase)

    def _proposed(self, finding: CaseFinding, cause: CaseFinding) -> str:
        self._note(finding.disease, finding.place, "present")
        self._note(cause.disease, cause.place, "hedged")
        return _filled(
            self._one(words.PROPOSED),
            x=self._phrase(finding.disease, finding.place),
            t=self._term(cause.disease),
        )

    def _status(self) -> Status:
        style, point = self.style, self.rng.random()
        if point < style.hedged:
            return "hedged"
        if point < style.hedged + style.unchanged:
            return "unchanged"
        return "improved" if point < style.hedged + style.unchanged + style.improved else "present"

    # What is not there, or no longer.

    def _negative_sentences(self, case: Case) -> list[str]:
        sentences = []
        for _ in range(self.rng.poisson(self.style.denials_mean)):
            sentences.append(self._denial())
        for _ in range(self.rng.poisson(self.style.priors_mean)):
            sentences.append(self._resolved(case))
        if self._happens(self.style.history):
            sentences.append(self._mention_of_absent(words.HISTORICAL, "historical"))
        if words.HEART not in self._taken and self._happens(0.35):
            self._note(words.HEART, Place("", "cardiac silhouette"), "denied")
            sentences.append(self._one(words.HEART_NORMAL))
        if self._happens(0.3):
            in_lungs = self._taken - {words.HEART, words.FAILURE}
            sentences.append(self._one(words.LUNGS_OTHERWISE if in_lungs else words.LUNGS_CLEAR))
        return [sentence for sentence in sentences if sentence]

    def _denial(self) -> str:
        size = int(self.rng.choice(3, p=(0.5, 0.3, 0.2))) + 1
        absent: list[str] = []
        templates: Sequence[str] = words.DENIED
        while len(absent) < size and (disease := self._absent_disease(absent)):
            absent.append(disease)
        if not absent:
            return ""
        terms = [self._term(disease) for disease in absent]
        if len(absent) == 1:
            place = sample_place(self.rng, absent[0])
            if place.side and self._happens(0.25):
                self._note(absent[0], place, "denied")
                return _filled(self._one(words.DENIED_PLACED), x=self._phrase(absent[0], place))
        else:
            templates = words.DENIED_TWO if len(absent) == 2 else words.DENIED_THREE
        for disease in absent:
            self._note(disease, Place(), "denied")
        return _filled(self._one(templates), t=terms[0], **dict(zip("abc", terms, strict=False)))

    def _resolved(self, case: Case) -> str:
        """A finding that has gone: a disease that is absent, or a present one on the other side."""
        one_sided = [f for f in case if f.place.side in {"right", "left"} and not f.proposed]
        if one_sided and self._happens(0.4):
            finding = one_sided[int(self.rng.integers(len(one_sided)))]
            other = "left" if finding.place.side == "right" else "right"
            disease, place = finding.disease, Place(other, finding.place.zone)
        else:
            disease = self._absent_disease([])
            if not disease:
                return ""
            place = sample_place(self.rng, disease)
        self._note(disease, place, "resolved")
        return _filled(self._one(words.RESOLVED), x=self._phrase(disease, place))

    def _mention_of_absent(self, templates: Sequence[str], status: Status) -> str:
        disease = self._absent_disease([])
        if not disease:
            return ""
        self._note(disease, Place(), status)
        return _filled(self._one(templates), t=self._term(disease))

    def _absent_disease(self, but: Sequence[str]) -> str:
        """Return a disease that the case does not have, "" if there is none."""
        choice = [d for d in words.TERMS if d not in self._taken and d not in but]
        return self._one(choice) if choice else ""

    # Words.

    def _term(self, disease: str) -> str:
        usual, unusual = words.TERMS[disease]
        return self._one(unusual if self._happens(self.style.unusual_terms) else usual)

    def _phrase(self, disease: str, place: Place) -> str:
        """Return term and place, such as "small right pleural effusion"."""
        term = self._term(disease)
        before, behind = self._place_words(place)
        modifier = (
            self._one(words.MODIFIERS[disease]) if self._happens(self.style.modifiers) else ""
        )
        if place.side == "both" and place.zone == "lung" and term in {"effusion", "opacity"}:
            term = {"effusion": "effusions", "opacity": "opacities"}[term]
        return " ".join(part for part in (modifier, before, term, behind) if part)

    def _place_words(self, place: Place) -> tuple[str, str]:
        """Return what stands before the term and what stands behind it; one of them is empty."""
        side, zone = place.side, place.zone
        if not side:
            return "", self._one(words.MIDLINE[zone]) if zone in words.MIDLINE else ""
        short = words.SHORT_BEFORE.get((side, zone))
        if short and self._happens(self.style.short_forms):
            return short, ""
        behind = self._happens(self.style.place_behind)
        if side == "both":
            choice = (words.BOTH_BEHIND if behind else words.BOTH_BEFORE)[zone]
        else:
            general = (words.ZONE_BEHIND if behind else words.ZONE_BEFORE)[zone]
            special = (words.SIDED_BEHIND if behind else words.SIDED_BEFORE).get((side, zone), ())
            choice = (*general, *special)
        text = self._one(choice).format(s=side)
        return ("", text) if behind else (text, "")

    # Layout.

    def _laid_out(self, sentences: list[str], case: Case) -> str:
        names = [name for name, _ in self.style.layouts]
        share = np.array([weight for _, weight in self.style.layouts], dtype=float)
        layout = names[int(self.rng.choice(len(names), p=share / share.sum()))]
        indication = ""
        if layout != "prose" and self._happens(self.style.history):
            question = self._mention_of_absent(words.INDICATION, "historical")
            indication = f"INDICATION: {question}\n" if question else ""
        if layout == "sections":
            body = f"FINDINGS: {' '.join(sentences)}\nIMPRESSION: {self._impression(case)}"
        elif layout == "impression":
            body = f"IMPRESSION: {' '.join(sentences)}"
        elif layout == "list":
            bullet = self._happens(0.3)
            marks = ["-" if bullet else f"{i}." for i in range(1, len(sentences) + 1)]
            items = [f"{mark} {item}" for mark, item in zip(marks, sentences, strict=True)]
            body = ("\n" if bullet else " ").join(items)
        else:
            body = " ".join(sentences)
        return indication + body

    def _impression(self, case: Case) -> str:
        """Return one to two of the findings again in short, or that there are none."""
        plain = [finding for finding in case if not finding.proposed]
        if not plain:
            return self._one(words.NORMAL_IMPRESSION)
        kept = [f for f in plain if self._happens(self.style.repeats)][:2] or plain[:1]
        for finding in kept:
            self._note(finding.disease, finding.place, "present")
        return " ".join(_filled("{X}.", x=self._phrase(f.disease, f.place)) for f in kept)

    # Chance.

    def _note(self, disease: str, place: Place, status: Status) -> None:
        self.mentions.append(Mention(disease, place, status))

    def _happens(self, rate: float) -> bool:
        return bool(self.rng.random() < rate)

    def _one(self, choice: Sequence[str]) -> str:
        return choice[int(self.rng.integers(len(choice)))]

    def _some(self, choice: Sequence[str], count: int) -> list[str]:
        picked = self.rng.permutation(len(choice))[: min(count, len(choice))]
        return [choice[int(i)] for i in picked]


def _filled(template: str, **parts: str) -> str:
    """Return the sentence with its parts; a capital key takes the part with a capital letter."""
    capital = {key.upper(): part[0].upper() + part[1:] for key, part in parts.items()}
    return template.format(**parts, **capital)
