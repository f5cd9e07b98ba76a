"""Projection: from whatever a model wrote to a canonical structure (DESIGN 1.2).

Projection never looks at a label. It is pure, total (it raises for no text), linear in time, and
leaves its own canonical JSON as it is.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedpref.task.ontology import ONTOLOGY, Ontology
from fedpref.task.structure import Structure

MAX_DEPTH: Final = 100

# One token of a brace-balanced span: a whole string, a quote whose string never ends, a bracket.
# The possessive quantifier keeps the time linear on megabytes of quotes and backslashes.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
_OPENING = re.compile(r'\{[ \t\n\r]*["}]')
_THINK = re.compile(r"</?think>")


@dataclass(frozen=True)
class Projection:
    """What a text was projected to.

    `failure` is None if the text held a valid object, else one of no_object, duplicate_key,
    non_finite, missing_key, not_a_list, too_deep; then `structure` is empty and not `eligible` for
    pairs. `strict` says that the whole text is that one object. `dropped` counts what was ignored.
    """

    structure: Structure
    eligible: bool
    strict: bool
    failure: str | None
    dropped: Mapping[str, int] = field(default_factory=dict)


def project(text: str, ontology: Ontology = ONTOLOGY) -> Projection:
    """Return the projection of a model's answer to the ontology."""
    start = _after_thinking(text)
    if start is None:
        return _failed("no_object", ontology)
    for span in _spans(text, start):
        if span.too_deep:
            return _failed("too_deep", ontology)
        if span.value is not None:
            failure = span.failure or _shape_failure(span.value)
            if failure is not None:
                return _failed(failure, ontology)
            structure, dropped = _canonical(span.value, ontology)
            strict = text.strip() == text[span.start : span.end]
            return Projection(structure, True, strict, None, dropped)
    return _failed("no_object", ontology)


@dataclass(frozen=True)
class _Span:
    start: int
    end: int
    value: dict[str, Any] | None  # None: balanced, but not JSON at all
    failure: str | None = None
    too_deep: bool = False


def _failed(failure: str, ontology: Ontology) -> Projection:
    return Projection(Structure(ontology=ontology), False, False, failure)


def _after_thinking(text: str) -> int | None:
    """Return where the answer begins: behind the last `</think>` that no JSON span holds.

    None if a `<think>` is never closed.
    """
    tags = list(_THINK.finditer(text))
    if not tags:
        return 0
    spans = [s for s in _spans(text, 0) if s.value is not None]
    outside, position = [], 0
    for tag in tags:
        while position < len(spans) and spans[position].end <= tag.start():
            position += 1
        if position == len(spans) or tag.start() < spans[position].start:
            outside.append(tag)
    start = max((tag.end() for tag in outside if tag[0] == "</think>"), default=0)
    unclosed = any(tag[0] == "<think>" and tag.start() >= start for tag in outside)
    return None if unclosed else start


def _spans(text: str, position: int) -> Iterator[_Span]:
    """Yield the brace-balanced spans in order; a brace that never closes ends the search."""
    parser = _Parser()
    while (start := text.find("{", position)) >= 0:
        end = _balanced_end(text, start)
        if end is None:
            return
        if end < 0:
            yield _Span(start, len(text), None, too_deep=True)
            return
        value, failure = parser.parse(text[start:end])
        yield _Span(start, end, value, failure)
        position = end


def _balanced_end(text: str, start: int) -> int | None:
    """Return the end of the span that opens at `start`; None if it never closes, -1 if too deep."""
    braces = brackets = 0
    for token in _TOKEN.finditer(text, start):
        match token[0]:
            case "{":
                braces += 1
            case "[":
                brackets += 1
            case "}":
                braces -= 1
                if braces == 0:
                    return token.end()
            case "]":
                brackets = max(0, brackets - 1)
            case '"':
                return None
        if braces + brackets > MAX_DEPTH:
            return -1
    return None


class _Parser:
    """Strict JSON of one object at a time; the first fault of the last parse is kept.

    The hooks note a fault instead of raising: a span with a fault *and* a syntax error is no JSON.
    """

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._decoder = json.JSONDecoder(
            parse_int=self._number,
            parse_float=self._number,
            parse_constant=self._constant,
            object_pairs_hook=self._object,
        )

    def parse(self, span: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return the value of a span, None if it is not JSON, and why it must be rejected."""
        if _OPENING.match(span) is None:  # spares the decoder most braces of prose
            return None, None
        self._faults.clear()
        try:
            value = self._decoder.decode(span)
        except ValueError:
            return None, None
        return value, self._faults[0] if self._faults else None

    def _number(self, digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            self._faults.append("non_finite")
        return value

    def _constant(self, _name: str) -> None:
        self._faults.append("non_finite")

    def _object(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) < len(items):
            self._faults.append("duplicate_key")
        return value


def _shape_failure(value: dict[str, Any]) -> str | None:
    if not {"diseases", "findings"} <= value.keys():
        return "missing_key"
    if not all(isinstance(value[key], list) for key in ("diseases", "findings")):
        return "not_a_list"
    return None


def _canonical(value: dict[str, Any], ontology: Ontology) -> tuple[Structure, dict[str, int]]:
    """Return the structure of the known entries, and what was dropped, counted by reason."""
    known_diseases, known_locations = ontology.disease_rank, ontology.location_rank
    dropped: Counter[str] = Counter()
    dropped["extra_keys"] = len(value) - 2
    diseases = []
    for disease in value["diseases"]:
        if not isinstance(disease, str):
            dropped["malformed_diseases"] += 1
        elif disease not in known_diseases:
            dropped["unknown_diseases"] += 1
        else:
            diseases.append(disease)
    findings = []
    for entry in value["findings"]:
        names = entry if isinstance(entry, dict) else {}
        disease, location = names.get("disease"), names.get("location")
        if not isinstance(disease, str) or not isinstance(location, str):
            dropped["malformed_findings"] += 1
        elif disease not in known_diseases or location not in known_locations:
            dropped["unknown_findings"] += 1
        else:
            findings.append((disease, location))
            dropped["extra_finding_keys"] += len(entry) - 2
    kept = {reason: count for reason, count in dropped.items() if count}
    return Structure(diseases, findings, ontology), kept
