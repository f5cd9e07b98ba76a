"""Words and phrases: how a text is cut into words, and how listed phrases are found in them.

Everything here is linear in the length of the text.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_WORD: Final = 24  # longer words are no misspelling of anything listed

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*+|_{2,}+|[^\w\s]|_")


def words_of(phrase: str) -> tuple[str, ...]:
    """Return the lower-case words and marks of a phrase; hyphens only join and are left out."""
    return tuple(w.lower().replace("’", "'") for w in WORD.findall(phrase) if w != "-")


@dataclass(frozen=True)
class Span:
    """A listed phrase found at words `start` to `end` (exclusive) of a sentence."""

    kind: str
    value: tuple[str, ...]
    start: int
    end: int


def gap(a: Span, b: Span) -> int:
    """Return the number of words between two spans."""
    return b.start - a.end if a.start < b.start else a.start - b.end


def nearest(spans: Sequence[Span], to: Span) -> Span | None:
    """Return the span with the fewest words to `to`, the earlier if two are as near.

    `spans` stand in text order; the search takes logarithmic time.
    """
    at = bisect_left(spans, to.start, key=_start)
    return min(spans[max(at - 1, 0) : at + 1], key=lambda s: (gap(s, to), s.start), default=None)


def _start(span: Span) -> int:
    return span.start


class PhraseTable:
    """Phrases with their kind and values, found longest first and without overlap.

    A phrase may be added several times: of one kind its values add up; of two kinds, the kind
    added first stays.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
        self._longest: dict[str, int] = {}

    def add(self, kind: str, phrases: Iterable[str], value: Sequence[str] = ()) -> None:
        """Add phrases of one kind; `value` is what a span of it carries."""
        for phrase in phrases:
            words = words_of(phrase)
            old_kind, old_value = self._entries.get(words, (kind, ()))
            if old_kind != kind:
                continue
            merged = tuple(dict.fromkeys((*old_value, *value)))
            self._entries[words] = (kind, merged)
            self._longest[words[0]] = max(self._longest.get(words[0], 0), len(words))

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return every single word of every phrase."""
        return frozenset(word for words in self._entries for word in words)

    def find(self, words: Sequence[str]) -> list[Span]:
        """Return the spans in a sentence, from left to right."""
        spans: list[Span] = []
        at = 0
        while at < len(words):
            end = at + 1
            for length in range(self._longest.get(words[at], 0), 0, -1):
                entry = self._entries.get(tuple(words[at : at + length]))
                if entry is not None:
                    end = at + length
                    spans.append(Span(entry[0], entry[1], at, end))
                    break
            at = end
        return spans


class Spelling:
    """Corrects a word that is one slip away from one of a few long words."""

    def __init__(self, words: Iterable[str], never: Iterable[str]) -> None:
        self._never = frozenset(never)
        self._words = tuple(words)
        index: dict[str, str] = {}
        for word in self._words:
            for variant in _deletions(word):
                index.setdefault(variant, word)
        self._index: Mapping[str, str] = index

    def correct(self, word: str) -> str:
        """Return the listed word that `word` was meant to be, or `word` itself."""
        if not 7 <= len(word) <= MAX_WORD or word in self._never:
            return word
        for variant in _deletions(word):
            target = self._index.get(variant)
            if target is not None and _one_slip(word, target):
                return target
        return word


def _deletions(word: str) -> list[str]:
    return [word, *(word[:i] + word[i + 1 :] for i in range(len(word)))]


def _one_slip(a: str, b: str) -> bool:
    """Return whether one letter lost, added or changed, or two swapped, makes `a` into `b`."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    rest_a, rest_b = a[head:], b[head:]
    return (
        rest_a[1:] == rest_b[1:]
        or rest_a[1:] == rest_b
        or rest_a == rest_b[1:]
        or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])
    )
