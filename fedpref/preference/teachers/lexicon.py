"""The rule teachers' lexicon: read once from package data, compiled per habit."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedpref.hashing import digest
from fedpref.preference.teachers.phrases import PhraseTable, Spelling
from fedpref.preference.teachers.sentences import SectionNames, header_key

TIERS = ("exact", "common", "wide")


@dataclass(frozen=True)
class Lexicon:
    """The parsed TOML file and what every teacher shares of it."""

    raw: Mapping[str, Any]
    sections: SectionNames
    spelling: Spelling
    abbreviations: frozenset[str]
    digest: str

    def words(self, *path: str) -> tuple[str, ...]:
        """Return the list at a path of keys."""
        value: Any = self.raw
        for key in path:
            value = value[key]
        return tuple(value)


@cache
def load_lexicon() -> Lexicon:
    """Return the lexicon that ships with the package."""
    text = (resources.files("fedpref.demo") / "lexicon.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    sections = SectionNames(
        *(frozenset(map(header_key, raw["sections"][k])) for k in ("skip", "read", "body_parts"))
    )
    spelling = Spelling(raw["spelling"]["words"], raw["spelling"]["never"])
    return Lexicon(raw, sections, spelling, frozenset(raw["abbreviations"]["words"]), digest(raw))


def phrase_table(lexicon: Lexicon, tiers: Sequence[str]) -> PhraseTable:
    """Return the phrases of a teacher that knows the disease words of `tiers`.

    Kinds: finding (values: diseases), noun, shield, subject, predicate, other, borderline,
    before, before_short, after, either, pseudo, end, side, zone,
    place (values: `side|zone`, without side in the midline).
    """
    table = PhraseTable()
    denial, heart, places = (lexicon.raw[key] for key in ("denial", "heart", "places"))
    for kind in ("pseudo", "after", "either", "before", "before_short", "ends"):
        table.add(kind.removesuffix("s"), denial[kind])
    table.add("shield", lexicon.raw["not_findings"]["phrases"])
    for disease, by_tier in lexicon.raw["diseases"].items():
        for tier in tiers:
            table.add("finding", by_tier[tier], (disease,))
    for kind in ("subjects", "predicates", "others"):
        table.add(kind.removesuffix("s"), heart[kind])
    table.add("borderline", heart["borderline"])
    _add_places(table, places)
    table.add("noun", lexicon.raw["not_findings"]["nouns"])
    return table


def _add_places(table: PhraseTable, places: Mapping[str, Any]) -> None:
    for side, phrases in (*places["sides"].items(), *places["both_in_one"].items()):
        sides = ("right", "left") if side == "both" else (side,)
        for phrase in phrases:
            name, _, zone = phrase.partition(":")
            if zone:
                table.add("place", [name], [f"{s}|{zone}" for s in sides])
            else:
                table.add("side", [name], sides)
    for location, phrases in places["midline"].items():
        table.add("place", phrases, [f"|{location}"])
    for zone, phrases in places["zones"].items():
        table.add("zone", phrases, (zone,))
    for phrase, zones in places["pairs"].items():
        table.add("zone", [phrase], zones)
