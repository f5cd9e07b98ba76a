"""The canonical structure: what a report says, as diseases and (disease, location) findings."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedpref.task.ontology import ONTOLOGY, Ontology

Finding = tuple[str, str]


@dataclass(frozen=True, init=False)
class Structure:
    """Diseases and findings in canonical form (DESIGN 1.2, rule 5).

    A finding's disease joins `diseases`, a subregion adds its parents, duplicates go, both tuples
    are in the ontology's order. Two structures are equal if they say the same. An unknown name
    raises ValueError.
    """

    diseases: tuple[str, ...]
    findings: tuple[Finding, ...]
    ontology: Ontology = field(compare=False, repr=False)

    def __init__(
        self,
        diseases: Iterable[str] = (),
        findings: Iterable[Iterable[str]] = (),
        ontology: Ontology = ONTOLOGY,
    ) -> None:
        disease_rank, location_rank = ontology.disease_rank, ontology.location_rank
        all_diseases = set(diseases)
        all_findings: set[Finding] = set()
        for disease, location in findings:
            if location not in location_rank:
                raise ValueError(f"unknown location {location!r}")
            all_diseases.add(disease)
            all_findings.add((disease, location))
            all_findings.update((disease, parent) for parent in ontology.ancestors(location))
        for disease in all_diseases:
            if disease not in disease_rank:
                raise ValueError(f"unknown disease {disease!r}")
        ordered = sorted(all_findings, key=lambda f: (disease_rank[f[0]], location_rank[f[1]]))
        object.__setattr__(self, "diseases", tuple(sorted(all_diseases, key=disease_rank.get)))  # type: ignore[arg-type]
        object.__setattr__(self, "findings", tuple(ordered))
        object.__setattr__(self, "ontology", ontology)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the JSON value: `diseases`, then `findings` of `disease` and `location`."""
        return {
            "diseases": list(self.diseases),
            "findings": [{"disease": d, "location": where} for d, where in self.findings],
        }

    def to_json(self) -> str:
        """Return the canonical JSON text, the only form that is ever trained on."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_dict(cls, value: Any, ontology: Ontology = ONTOLOGY) -> "Structure":
        """Return the structure of a JSON value; ValueError if it has another shape."""
        if not isinstance(value, dict) or not {"diseases", "findings"} <= value.keys():
            raise ValueError("a structure is an object with the keys diseases and findings")
        diseases, findings = value["diseases"], value["findings"]
        if not isinstance(diseases, list) or not all(isinstance(d, str) for d in diseases):
            raise ValueError("diseases must be a list of strings")
        if not isinstance(findings, list) or not all(_is_finding(f) for f in findings):
            raise ValueError("findings must be a list of objects with disease and location")
        return cls(diseases, [(f["disease"], f["location"]) for f in findings], ontology)

    @classmethod
    def from_json(cls, text: str, ontology: Ontology = ONTOLOGY) -> "Structure":
        """Return the structure of a JSON text; ValueError if it is not one.

        This reads what was written by `to_json`; a model's answer goes through `project`.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("a structure is one JSON object") from None
        return cls.from_dict(value, ontology)


def _is_finding(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("disease"), str)
        and isinstance(value.get("location"), str)
    )


@dataclass(frozen=True)
class Ignore:
    """What an annotation does not decide (DESIGN 1.3, masks).

    `diseases` leave both sides of every comparison; of the diseases in `locations_of`, only the
    (disease, location) findings leave.
    """

    diseases: frozenset[str] = frozenset()
    locations_of: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "diseases", frozenset(self.diseases))
        object.__setattr__(self, "locations_of", frozenset(self.locations_of))

    def __bool__(self) -> bool:
        return bool(self.diseases or self.locations_of)
