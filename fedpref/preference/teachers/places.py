"""Where a finding is said to be: which side and zone words of a sentence belong to which term."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedpref.preference.teachers.phrases import Span, gap

BESIDE: Final = 2

Place = tuple[str, str | None]  # side, zone


@dataclass(frozen=True)
class Grammar:
    """The small words that decide, each a set of single words."""

    prepositions: Collection[str]
    links: Collection[str]
    fillers: Collection[str]
    separators: Collection[str]


@dataclass
class Term:
    """A finding, or another noun that takes a place, with the place spans that belong to it."""

    span: Span
    places: list[Span] = field(default_factory=list)


def attach(
    words: Sequence[str], terms: Sequence[Term], places: Sequence[Span], grammar: Grammar
) -> None:
    """Give each place span of a sentence to one term; terms and places stand in text order.

    Behind the last term, all go to it; before the first, those that the term's own phrase holds.
    Between two terms, "opacity in the right base and left effusion" is parted at its last
    separator, unless a linking verb ("may represent") follows.
    """
    if not terms:
        return
    gaps: list[list[Span]] = [[] for _ in range(len(terms) + 1)]
    passed = 0
    for place in places:
        while passed < len(terms) and terms[passed].span.start <= place.start:
            passed += 1
        gaps[passed].append(place)
    for at, spans in enumerate(gaps):
        if not spans:
            continue
        before = terms[at - 1] if at > 0 else None
        after = terms[at] if at < len(terms) else None
        first, second = _part(words, before, after, spans, grammar)
        if before is not None:
            before.places.extend(first)
        if after is not None:
            after.places.extend(second)


def attach_beside(terms: Sequence[Term], places: Sequence[Span]) -> None:
    """Give each term the place spans that stand within `BESIDE` words of it, either side."""
    first = 0
    for term in terms:
        while first < len(places) and term.span.start - places[first].end > BESIDE:
            first += 1
        for place in places[first : first + 2 * BESIDE + 2]:
            if gap(place, term.span) <= BESIDE:
                term.places.append(place)


def _part(
    words: Sequence[str], before: Term | None, after: Term | None, spans: list[Span], g: Grammar
) -> tuple[list[Span], list[Span]]:
    """Return which of the place spans between two terms go back and which go on."""
    if after is None:
        return spans, []
    if before is None:
        # "Left lung clear, small right effusion": only what is coordinated to the last place.
        return [], spans[_last_group(words, spans, g) :]
    start, end = before.span.end, after.span.start
    tail = words[spans[-1].end : end]
    if any(word in g.links or word in g.prepositions for word in tail):
        return spans, []
    preposed = any(word in g.prepositions for word in words[start : spans[0].start])
    breaks = [i for i in range(start, end) if words[i] in g.separators]
    if not breaks:
        return (spans, []) if preposed else ([], spans)
    if not preposed and breaks[0] < spans[0].start:
        # "effusion and left and right basilar atelectasis", unless nothing places the first.
        group = _last_group(words, spans, g)
        return spans[:group], spans[group:]
    # The last separator that has places before it and behind it, or none behind it.
    cut = next((i for i in reversed(breaks) if i >= spans[0].end), breaks[-1])
    return [s for s in spans if s.start < cut], [s for s in spans if s.start >= cut]


def _last_group(words: Sequence[str], spans: list[Span], g: Grammar) -> int:
    """Return the index of the first span that only fillers join to all spans behind it."""
    at = len(spans) - 1
    while at > 0 and all(w in g.fillers for w in words[spans[at - 1].end : spans[at].start]):
        at -= 1
    return at


def read_places(spans: Sequence[Span]) -> list[Place]:
    """Return the (side, zone) pairs that place spans say together, in order, without duplicates.

    "right upper and lower lobe", "right and left base", "base of the right lung", "left greater
    than right basilar". A zone without a side gives nothing.
    """
    found: list[Place] = []
    sides: dict[str, None] = {}  # as ordered sets: a text may repeat one word a million times
    zones: dict[str, None] = {}

    def close() -> None:
        found.extend((side, zone) for side in sides for zone in (zones or (None,)))
        sides.clear()
        zones.clear()

    for span in spans:
        if span.kind == "place":
            close()
            pairs = [value.partition("|") for value in span.value]
            found.extend((side, zone) for side, _, zone in pairs)
        elif span.kind == "zone":
            zones.update(dict.fromkeys(span.value))
        else:
            if zones and sides:
                close()
            sides.update(dict.fromkeys(span.value))
            if zones:  # the side stands behind its zone
                close()
    close()
    return list(dict.fromkeys(found))
