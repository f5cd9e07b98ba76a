"""Which findings of a sentence are asserted, and which are denied, past, asked for or conditional.

Three ways to read a denial, from careful to careless; each is linear in the sentence.
"""

from collections.abc import Collection, Sequence

from fedpref.preference.teachers.phrases import Span

NEAR = 5  # words over which a careless reader lets a denial reach


def in_scope(
    words: Sequence[str], spans: Sequence[Span], *, resume: Collection[str], go_on: Collection[str]
) -> dict[int, bool]:
    """Return, by start word, whether each finding and place is asserted; scope is respected.

    A denial reaches to the end of its clause: over commas and "or", but not over "but", not over a
    comma that begins a new statement (`resume`), unless the list goes on with a word of `go_on`.
    A denial behind the term reaches back to the clause's beginning. A pseudo-denial ("no change",
    "not resolved", "cannot be excluded") denies nothing.
    """
    asserted: dict[int, bool] = {}
    clause: list[int] = []  # starts of the findings since the clause began
    denied = short = False
    by_start = {span.start: span for span in spans}
    list_ends = max((i for i, word in enumerate(words) if word in go_on), default=-1)
    for at, word in enumerate(words):
        span = by_start.get(at)
        kind = span.kind if span is not None else ""
        if kind in ("before", "before_short"):
            denied, short, clause = True, kind == "before_short", []
        elif kind == "pseudo":
            denied = False
        elif kind == "end":
            denied, clause = False, []
        elif kind in ("after", "either"):
            asserted.update(dict.fromkeys(clause, False))
            # "resolved pneumothorax": nothing stands before it
            denied = short = kind == "either" and not clause
            clause = []
        elif kind in ("finding", "side", "zone", "place"):
            asserted[at] = not denied
            if kind == "finding":
                clause.append(at)
        if not denied or (span is not None and kind.startswith("before")):
            continue
        following = words[at + 1] if at + 1 < len(words) else ""
        if (short and word in (",", "with")) or (
            word in (",", "and") and following in resume and at > list_ends
        ):
            denied, clause = False, []
    return asserted


def in_sentence(spans: Sequence[Span]) -> dict[int, bool]:
    """Return the same for a reader to whom any denial word denies the rest of the sentence.

    Such a reader knows no pseudo-denial; a denial behind the terms denies all before it.
    """
    asserted: dict[int, bool] = {}
    standing: list[int] = []  # starts that nothing has denied yet
    denied = False
    for span in spans:
        if span.kind in ("before", "before_short", "pseudo"):
            denied = True
        elif span.kind in ("after", "either"):
            asserted.update(dict.fromkeys(standing, False))
            standing = []
        elif span.kind in ("finding", "side", "zone", "place"):
            asserted[span.start] = not denied
            standing.append(span.start)
    return asserted


def when_near(spans: Sequence[Span]) -> dict[int, bool]:
    """Return the same for a reader whose denials reach `NEAR` words on and never back."""
    asserted: dict[int, bool] = {}
    denied_from = -NEAR - 1
    for span in spans:
        if span.kind in ("before", "before_short"):
            denied_from = span.end
        elif span.kind == "finding":
            asserted[span.start] = span.start - denied_from > NEAR
        elif span.kind in ("side", "zone", "place"):
            asserted[span.start] = True
    return asserted
