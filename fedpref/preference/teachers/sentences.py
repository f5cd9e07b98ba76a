"""From report text to the sentences that describe this examination's chest.

Reports come with headers or without, with bullets, glued list numbers, wrapped lines, abbreviations
and de-identification marks. Sections that hold the clinical question, a comparison or another body
part are left out. Linear in the length of the text.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fedpref.preference.teachers.phrases import WORD, words_of

_TAG = re.compile(r"</?[A-Za-z]{1,10}>")
_BULLETS = frozenset("-•*–—·‣▪")
_DASHES = frozenset("-‐‑‒–—−")
_HEADER_WORDS = 5
_WRAPPED = 60  # a line at least this long may go on in the next one
_MARK = "xxxx"  # a de-identified word

Sentence = tuple[str, ...]


@dataclass(frozen=True)
class SectionNames:
    """Headers by what they open; keys are words joined by a blank."""

    skip: Collection[str]
    read: Collection[str]
    body_parts: Collection[str]

    def kind(self, header: str) -> str:
        """Return `skip`, `read` or `unknown`."""
        if header in self.read:
            return "read"
        if header in self.skip:
            return "skip"
        words = header.split()
        if "chest" not in words and not self._body_parts.isdisjoint(words):
            return "skip"
        return "unknown"

    @property
    def _body_parts(self) -> frozenset[str]:
        return frozenset(self.body_parts)


@dataclass
class _Raw:
    """A sentence before its section is known; `fresh` says that a blank line stands before it."""

    words: list[str]
    fresh: bool
    new_line: bool


def sentences(
    text: str,
    *,
    sections: SectionNames,
    abbreviations: Collection[str],
    correct: Callable[[str], str],
) -> list[Sentence]:
    """Return the sentences to be read, each as lower-case words and marks, in order.

    `correct` is applied to every word (spelling). A lone R or L becomes right or left.
    """
    raw = [s for s in _split(text, frozenset(abbreviations), correct) if s.words]
    headers = [_header(s.words, sections) for s in raw]
    last_read = max((i for i, (kind, _) in enumerate(headers) if kind == "read"), default=-1)
    kept: list[Sentence] = []
    skipping = False
    for at, (sentence, (kind, length)) in enumerate(zip(raw, headers, strict=True)):
        if kind == "skip":
            skipping = True
        elif (
            kind == "read"
            or (kind == "unknown" and sentence.new_line)
            or (sentence.fresh and skipping and kind == "none")
            # Without a header further on, a skipped section is one line.
            or (sentence.new_line and at > last_read)
        ):
            skipping = False
        words = sentence.words[length:] if kind in ("read", "skip") else sentence.words
        if not skipping and words:
            kept.append(tuple(words))
    return kept


def _header(words: list[str], sections: SectionNames) -> tuple[str, int]:
    """Return (kind, words to remove) of the header that begins a sentence, if one does."""
    for at, word in enumerate(words[: _HEADER_WORDS + 1]):
        if word == ":" and at > 0:
            return sections.kind(" ".join(words[:at])), at + 1
        if not word[0].isalpha():
            break
    return "none", 0


def _split(
    text: str, abbreviations: frozenset[str], correct: Callable[[str], str]
) -> Iterator[_Raw]:
    fresh, new_line, previous_long = True, True, False
    current = _Raw([], True, True)
    for line in _TAG.sub(" ", unicodedata.normalize("NFKC", text)).split("\n"):
        line = line.strip()  # noqa: PLW2901
        if not line:
            fresh = True
            continue
        starts = line[0] in _BULLETS or line[0].isupper() or line[0].isdigit()
        new_line = not (current.words and previous_long) or line[0] in _BULLETS
        if fresh or (starts and new_line):
            yield current
            current = _Raw([], fresh, True)
        previous_long = len(line) >= _WRAPPED and line[-1] not in ".:;!?"
        fresh = False
        for word, ends in _tokens(line, abbreviations):
            if word and not (not current.words and word in (".", ",", ")", ":")):
                current.words.append(_word(word, correct))
            if ends:
                yield current
                current = _Raw([], False, False)
    yield current


def _word(word: str, correct: Callable[[str], str]) -> str:
    if word in ("R", "L"):
        return "right" if word == "R" else "left"
    if word.startswith("__"):
        return _MARK
    return correct(word.lower().replace("’", "'"))


def _tokens(line: str, abbreviations: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield (word or "", whether a sentence ends here) of one line."""
    before, at_start = "", True
    for match in WORD.finditer(line):
        word, end = match.group(), match.end()
        following = line[end : end + 1]
        preceding = line[match.start() - 1 : match.start()] if match.start() else ""
        if at_start and word.isdigit() and following and following in ".)":
            before = word
            continue  # a list number
        if at_start and word in (".", ")", ";", "!"):
            before = ""  # behind a list number, or doubled
            continue
        if word == ".":
            number = before.isdigit() and following.isdigit()
            single = len(before) == 1 and before.isalpha() and following.isalpha()
            if not (number or single or before.lower() in abbreviations):
                yield "", True
                at_start = True
            before = ""
            continue
        if word in (";", "!") or (word == "?" and preceding.strip()):
            yield "", True
            at_start, before = True, ""
            continue
        if word in _DASHES:
            # A hyphen joins; a dash between blanks parts; one at the start is a bullet.
            if not at_start and not preceding.strip() and not following.strip():
                yield ",", False
            before = ""
            continue
        if word in ("•", "*"):
            continue
        yield word, False
        before, at_start = word, False


def header_key(name: str) -> str:
    """Return a header's name in the form that `SectionNames` compares."""
    return " ".join(words_of(name))
