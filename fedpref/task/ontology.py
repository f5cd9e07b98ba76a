"""The vocabulary of a task: disease names, location names and which location contains which."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedpref.errors import ConfigError
from fedpref.hashing import digest


@dataclass(frozen=True)
class Ontology:
    """Names in canonical order. `parents` maps a subregion to the location that contains it.

    Raises ValueError if a list is empty or repeats a name, or a parent is unknown or circular.
    """

    name: str
    diseases: tuple[str, ...]
    locations: tuple[str, ...]
    parents: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "diseases", tuple(self.diseases))
        object.__setattr__(self, "locations", tuple(self.locations))
        object.__setattr__(self, "parents", MappingProxyType(dict(self.parents)))
        for kind, names in (("diseases", self.diseases), ("locations", self.locations)):
            if not names:
                raise ValueError(f"{kind} is empty")
            if not all(isinstance(name, str) and name.strip() == name != "" for name in names):
                raise ValueError(f"{kind} must be non-empty strings without outer blanks")
            if len(set(names)) != len(names):
                raise ValueError(f"{kind} repeats a name")
        for child, parent in self.parents.items():
            unknown = {child, parent} - set(self.locations)
            if unknown:
                raise ValueError(f"parents names unknown locations: {sorted(unknown)}")
            self.ancestors(child)

    def ancestors(self, location: str) -> tuple[str, ...]:
        """Return the locations that contain `location`, nearest first."""
        chain: list[str] = []
        current = location
        while (parent := self.parents.get(current)) is not None:
            if parent in chain or parent == location:
                raise ValueError(f"parents of {location!r} form a circle")
            chain.append(parent)
            current = parent
        return tuple(chain)

    @cached_property
    def disease_rank(self) -> Mapping[str, int]:
        """Return the canonical position of each disease."""
        return {name: rank for rank, name in enumerate(self.diseases)}

    @cached_property
    def location_rank(self) -> Mapping[str, int]:
        """Return the canonical position of each location."""
        return {name: rank for rank, name in enumerate(self.locations)}

    @cached_property
    def digest(self) -> str:
        """Return the content hash of everything that decides a structure (not of the name)."""
        return digest([list(self.diseases), list(self.locations), sorted(self.parents.items())])

    def __getstate__(self) -> dict[str, Any]:
        # A mapping proxy cannot be pickled, and an ontology travels to worker processes.
        return {**self.__dict__, "parents": dict(self.parents)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        object.__setattr__(self, "parents", MappingProxyType(self.parents))


def load_ontology(path: Path) -> Ontology:
    """Return the ontology of a TOML file with `name`, `diseases`, `locations`, `[parents]`.

    Raises ConfigError naming the file if it is missing, malformed or inconsistent.
    """
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = f"the ontology cannot be read ({error.strerror})"
    except (ValueError, TypeError) as error:  # tomllib's error is a ValueError
        what = f"the ontology is not valid: {error}"
    raise ConfigError(what, file=path, fix="see fedpref/task/ontology.toml for the shape")


def ontology_of(path: str | Path | None) -> Ontology:
    """Return the ontology of a file, or the task's own where none is named."""
    return load_ontology(Path(path)) if path else ONTOLOGY


def _parse(text: str) -> Ontology:
    raw = tomllib.loads(text)
    unknown = set(raw) - {"name", "diseases", "locations", "parents"}
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    missing = {"name", "diseases", "locations"} - set(raw)
    if missing:
        raise ValueError(f"missing keys {sorted(missing)}")
    return Ontology(raw["name"], raw["diseases"], raw["locations"], raw.get("parents", {}))


ONTOLOGY = _parse((resources.files("fedpref.task") / "ontology.toml").read_text(encoding="utf-8"))
