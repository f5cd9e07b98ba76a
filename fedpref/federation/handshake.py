"""What every site states before round 0, and the check that all state the same.

A federation averages adapters of one base model trained on one task with one configuration. Each
site answers a query with hashes of all of that; any difference is refused, naming field, sites and
values. Nothing about patients is in it but two counts.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flwr.app import ConfigRecord

from fedpref.adapter_state import AdapterSpec
from fedpref.errors import AdapterError, FedPrefError, HandshakeError, raise_all
from fedpref.federation import wire

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# Field of the handshake → what to do when it differs.
_SAME: dict[str, str] = {
    "federation": "set federation to the same id everywhere",
    "config": "all sites read the run's configuration; install the same fedpref version everywhere",
    "weights": "give every site the same model files",
    "tokenizer": "give every site the same tokenizer files and chat template",
    "prompt": "set prompt.style and install the same fedpref version everywhere",
    "ontology": "give every site the same ontology file",
    "adapter": "use the same lora.* settings and base model everywhere",
    "initial": "install the same fedpref version everywhere",
}


@dataclass(frozen=True)
class SiteHandshake:
    """One site's statement: hashes (hex), library versions and two counts.

    `partition` and `partitions` are Flower's partition-id and num-partitions, -1 and 0 where the
    SuperNode has none. `dev_reports` is None where the site's policy withholds so small a count.
    `synthetic` marks invented reports; `holds` are hashes of adapters that the site already has.
    """

    site: str
    partition: int
    partitions: int
    federation: str
    config: str
    weights: str
    tokenizer: str
    prompt: str
    ontology: str
    spec: AdapterSpec
    initial: str
    versions: Mapping[str, str]
    pairs: int
    dev_reports: int | None
    synthetic: bool
    holds: tuple[str, ...] = ()

    @property
    def adapter(self) -> str:
        """The hash of the adapter specification."""
        return self.spec.digest

    def to_record(self) -> ConfigRecord:
        """Return the reply's config record; `from_record` reads it back."""
        record = ConfigRecord(
            {
                wire.STATUS: wire.READY,
                wire.SITE: self.site,
                wire.FEDERATION: self.federation,
                wire.HOLDS: list(self.holds),
                wire.PARTITION: self.partition,
                wire.PARTITIONS: self.partitions,
                "config": self.config,
                "weights": self.weights,
                "tokenizer": self.tokenizer,
                "prompt": self.prompt,
                "ontology": self.ontology,
                "adapter-spec": json.dumps(self.spec.to_dict()),
                "initial": self.initial,
                "versions": [f"{name}={version}" for name, version in self.versions.items()],
                "pairs": self.pairs,
                "synthetic": self.synthetic,
            }
        )
        if self.dev_reports is not None:
            record["dev-reports"] = self.dev_reports
        return record

    @classmethod
    def from_record(cls, record: ConfigRecord) -> "SiteHandshake":
        """Return the statement of a reply; raises HandshakeError if it is malformed."""
        try:
            handshake = cls(
                site=wire.text(record, wire.SITE),
                partition=wire.number(record, wire.PARTITION),
                partitions=wire.number(record, wire.PARTITIONS),
                federation=wire.text(record, wire.FEDERATION),
                config=wire.text(record, "config"),
                weights=wire.text(record, "weights"),
                tokenizer=wire.text(record, "tokenizer"),
                prompt=wire.text(record, "prompt"),
                ontology=wire.text(record, "ontology"),
                spec=AdapterSpec.from_dict(json.loads(wire.text(record, "adapter-spec"))),
                initial=wire.text(record, "initial"),
                versions=dict(
                    item.split("=", 1) for item in wire.texts(record, "versions") if "=" in item
                ),
                pairs=wire.number(record, "pairs"),
                dev_reports=(
                    wire.number(record, "dev-reports") if "dev-reports" in record else None
                ),
                synthetic=record.get("synthetic") is True,
                holds=wire.texts(record, wire.HOLDS),
            )
        except FedPrefError as error:
            raise HandshakeError(f"a handshake is malformed: {error.what}") from None
        except ValueError:
            raise HandshakeError("a handshake is malformed: no JSON specification") from None
        if not SITE_NAME.fullmatch(handshake.site):
            raise HandshakeError(
                "a site's name is not usable",
                why="it names files and table rows",
                fix="use at most 64 of the characters A-Z a-z 0-9 . _ - in site.toml",
            )
        if handshake.pairs < 0:
            raise HandshakeError("a negative pair count was stated", site=handshake.site)
        return handshake


@dataclass(frozen=True)
class Agreement:
    """What all sites stated alike, and who they are (sorted by name, with their pair counts).

    `synthetic` is true if any site's reports are invented: every output of the run says so.
    """

    spec: AdapterSpec
    common: Mapping[str, str]
    versions: Mapping[str, str]
    sites: Mapping[str, int]
    synthetic: bool

    def to_dict(self) -> dict[str, object]:
        """Return a JSON value for the run directory."""
        return {
            "common": dict(self.common),
            "versions": dict(self.versions),
            "sites": dict(self.sites),
            "synthetic": self.synthetic,
            "adapter_spec": self.spec.to_dict(),
        }


def agree(handshakes: Sequence[SiteHandshake], expected: Mapping[str, str]) -> Agreement:
    """Return what the sites agree on; `expected` are the values that the coordinator knows itself.

    Raises HandshakeError, or FedPrefErrors with all differences, naming the field, both sides and
    both values (hashes by their first 12 digits).
    """
    if not handshakes:
        raise HandshakeError("no site has joined")
    ordered = sorted(handshakes, key=lambda h: (h.site, h.partition))
    problems = [*_same_names(ordered), *_differences(ordered, expected)]
    raise_all(problems)
    first = ordered[0]
    _check_keys(first.spec)
    return Agreement(
        spec=first.spec,
        common={name: str(getattr(first, name)) for name in _SAME},
        versions=dict(first.versions),
        sites={h.site: h.pairs for h in ordered},
        synthetic=any(h.synthetic for h in ordered),
    )


def _same_names(ordered: Sequence[SiteHandshake]) -> list[FedPrefError]:
    return [
        HandshakeError(
            f"two SuperNodes (partitions {a.partition} and {b.partition}) are both {a.site!r}",
            why="replies and files are told apart by the site's name",
            fix="give every site.toml a name of its own",
            site=a.site,
        )
        for a, b in pairwise(ordered)
        if a.site == b.site
    ]


def _differences(
    ordered: Sequence[SiteHandshake], expected: Mapping[str, str]
) -> list[FedPrefError]:
    """Compare every site with the coordinator where it knows the value, else with the first."""
    first = ordered[0]
    libraries = sorted({name for site in ordered for name in site.versions})
    fields = [
        *((name, fix, expected.get(name)) for name, fix in _SAME.items()),
        *(
            (
                f"version of {library}",
                f"install the same version of {library} everywhere",
                expected.get(f"version:{library}"),
            )
            for library in libraries
        ),
    ]
    problems: list[FedPrefError] = []
    for name, fix, known in fields:
        value = _value(first, name) if known is None else known
        whose = f"site {first.site}" if known is None else "the coordinator"
        problems += [
            HandshakeError(
                f"{name} differs: {_short(_value(site, name))} here, {_short(value)} at {whose}",
                fix=fix,
                site=site.site,
                key=name,
            )
            for site in ordered
            if _value(site, name) != value
        ]
    return problems


def _value(site: SiteHandshake, name: str) -> str:
    library = name.removeprefix("version of ")
    return str(getattr(site, name)) if library == name else site.versions.get(library, "none")


def _short(value: str) -> str:
    return value[:12] if re.fullmatch(r"[0-9a-f]{64}", value) else value


def _check_keys(spec: AdapterSpec) -> None:
    """Only LoRA factors may travel: never a base weight, an embedding or a head."""
    for key in spec.keys:
        if ".lora_A." not in key and ".lora_B." not in key:
            raise AdapterError(
                "the adapter specification holds a tensor that is no LoRA factor",
                key=key,
                fix="set lora.targets to linear layers only",
            )
