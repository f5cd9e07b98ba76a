"""A site's preference pairs: built from its candidates and annotations, kept in pairs.jsonl.

The first line of the file says what the pairs were made from, as content hashes; every other line
is one pair. Reading compares the hashes with the site as it is now, so that pairs which no longer
belong to its reports, annotations or candidates are never trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from fedpref.data import Report, SiteDirectory
from fedpref.errors import DataError, FedPrefError, raise_all
from fedpref.files import read_jsonl, write_jsonl
from fedpref.hashing import digest, digest_file
from fedpref.preference.audit import Audit, audit_split, merge_audits
from fedpref.preference.candidates import (
    PAIR_SPLITS,
    candidates_path,
    current_candidates,
    pair_reports,
    report_hash,
)
from fedpref.preference.pairs import MIN_MARGIN, Pair, select_pair
from fedpref.task import Ontology, Projection, project

FORMAT: Final = "fedpref-pairs-1"

# Length in tokens of the longer of prompt + chosen and prompt + rejected: (text, chosen, rejected).
LengthOf = Callable[[str, str, str], int]


@dataclass(frozen=True)
class PreferencePair:
    """One report's pair; `chosen` and `rejected` are canonical JSON texts.

    `pair_id` is the content hash of the report's text and both responses: reports of the same text
    and responses share it.
    """

    report_id: str = field(repr=False)
    split: str
    chosen: str = field(repr=False)
    rejected: str = field(repr=False)
    chosen_teacher: str
    rejected_teacher: str
    margin: float
    home_site: str | None
    pair_id: str


@dataclass(frozen=True)
class BuiltPairs:
    """The pairs of a site in the order of its reports, how many were too long, and the audit."""

    pairs: tuple[PreferencePair, ...]
    too_long: int
    audit: Audit


def build_pairs(
    site: SiteDirectory,
    teachers: Sequence[str],
    *,
    min_margin: float = MIN_MARGIN,
    length_of: LengthOf | None = None,
    max_length: int | None = None,
    on_too_long: Literal["error", "drop"] = "error",
    teacher_hashes: Mapping[str, str] | None = None,
) -> BuiltPairs:
    """Write pairs.jsonl from the candidates of `teachers`, whose order breaks ties.

    A report without annotation forms no pair. With `length_of` and `max_length`, a longer pair is a
    DataError that names its report, all at once, or leaves the file if `on_too_long` is "drop";
    nothing is ever cut. A report that `length_of` refuses (DataError) is named likewise. Raises
    DataError if a teacher's candidates are missing or out of date (`teacher_hashes`: the teachers'
    present digests, where known).
    """
    known = teacher_hashes or {}
    candidates = {
        name: current_candidates(site, name, teacher_hash=known.get(name)) for name in teachers
    }
    pairs: list[PreferencePair] = []
    audits: list[Audit] = []
    refused: list[FedPrefError] = []
    too_long: list[FedPrefError] = []
    for split in PAIR_SPLITS:
        reports = [report for report in site.reports if report.split == split]
        projections: list[dict[str, Projection]] = []
        retained: list[Pair] = []
        for report in reports:
            projected = {
                name: project(candidates[name][report.report_id].text, site.ontology)
                for name in teachers
            }
            projections.append(projected)
            annotation = site.annotations.get(report.report_id)
            if annotation is None:
                continue
            pair = select_pair(
                projected, annotation.structure, ignore=annotation.ignore, min_margin=min_margin
            )
            if pair is None:
                continue
            record = _record(report, pair)
            if length_of is not None and max_length is not None:
                try:
                    length = length_of(report.text, record.chosen, record.rejected)
                except DataError as error:
                    refused.append(_of_report(site, report, error))
                    continue
                if length > max_length:
                    too_long.append(_too_long(site, report, length, max_length))
                    continue
            pairs.append(record)
            retained.append(pair)
        annotated = sum(report.report_id in site.annotations for report in reports)
        audits.append(audit_split(split, teachers, projections, retained, annotated=annotated))
    raise_all([*refused, *(too_long if on_too_long == "error" else [])])
    made = {
        "teachers": list(teachers),
        "min_margin": min_margin,
        "max_length": max_length if length_of is not None else None,
        "too_long": len(too_long),
        "candidates": {name: digest_file(candidates_path(site, name)) for name in teachers},
    }
    pairs = _write(site, pairs, made)
    return BuiltPairs(tuple(pairs), len(too_long), merge_audits(audits))


def pool_pairs(
    pool: SiteDirectory, pairs: Mapping[str, Sequence[PreferencePair]]
) -> list[PreferencePair]:
    """Write and return all sites' pairs, given by site, as those of the union `data.write_pool`.

    They are the very same pairs, in the order of the union's reports.
    """
    together = [replace(pair, home_site=site) for site, own in pairs.items() for pair in own]
    return _write(pool, together, {"pooled": list(pairs), "candidates": {}})


def read_pairs(
    site: SiteDirectory, *, split: str | None = None, ontology: Ontology | None = None
) -> list[PreferencePair]:
    """Return the site's pairs (of one split, if given) in the order of reports.jsonl.

    Raises DataError naming site and file if there are none, the file is damaged, or it was made
    from other reports, annotations, candidates or another ontology (default: the site's) than are
    there now. Candidates that were removed since are no fault.
    """
    path = site.pairs_path
    fix = f"run `fedpref pairs {site.path}`"
    if not path.exists():
        raise DataError("the site has no pairs yet", file=path, site=site.name, fix=fix)
    header: dict[str, Any] = {}
    pairs: list[PreferencePair] = []
    for line, row in read_jsonl(path):
        if not header:
            header = row
            if header.get("format") != FORMAT:
                raise DataError(
                    "the first line does not say how the pairs were made",
                    file=path,
                    line=line,
                    site=site.name,
                    fix=fix,
                )
            continue
        pairs.append(_parse(row, path=str(path), line=line, site=site.name, fix=fix))
    changed = _changes(site, header, pairs, ontology or site.ontology)
    if changed:
        raise DataError(
            f"the pairs are stale or damaged: {', '.join(changed)} differ from what they were "
            "made with",
            file=path,
            site=site.name,
            fix=fix,
        )
    return [pair for pair in pairs if split in (None, pair.split)]


def pairs_digest(pairs: Sequence[PreferencePair]) -> str:
    """Return the content hash of pairs: their ids and splits, in order."""
    return digest([[pair.pair_id, pair.split] for pair in pairs])


def _write(
    site: SiteDirectory, pairs: Sequence[PreferencePair], made: Mapping[str, Any]
) -> list[PreferencePair]:
    """Write pairs.jsonl, in the order of the site's reports; `made` says how they came about."""
    order = {report.report_id: at for at, report in enumerate(site.reports)}
    pairs = sorted(pairs, key=lambda pair: order[pair.report_id])
    header = {
        "format": FORMAT,
        "ontology": site.ontology.digest,
        "pairs": len(pairs),
        "digest": pairs_digest(pairs),
        **_inputs(site),
        **made,
    }
    write_jsonl(site.pairs_path, [header, *(asdict(pair) for pair in pairs)])
    return pairs


def _record(report: Report, pair: Pair) -> PreferencePair:
    chosen, rejected = pair.chosen.to_json(), pair.rejected.to_json()
    return PreferencePair(
        report.report_id,
        report.split,
        chosen,
        rejected,
        pair.chosen_teacher,
        pair.rejected_teacher,
        pair.margin,
        report.home_site,
        _pair_id(report.text, chosen, rejected),
    )


def _pair_id(text: str, chosen: str, rejected: str) -> str:
    return digest([report_hash(text), chosen, rejected])


def _parse(row: Mapping[str, Any], *, path: str, line: int, site: str, fix: str) -> PreferencePair:
    names = PreferencePair.__dataclass_fields__
    optional = row.get("home_site") is None
    texts = [
        value
        for name, value in row.items()
        if name != "margin" and not (name == "home_site" and optional)
    ]
    if row.keys() != names.keys() or not (
        all(isinstance(value, str) for value in texts) and isinstance(row["margin"], float)
    ):
        raise DataError(
            f"a pair has the keys {', '.join(names)}", file=path, line=line, site=site, fix=fix
        )
    return PreferencePair(**row)


def _changes(
    site: SiteDirectory,
    header: Mapping[str, Any],
    pairs: Sequence[PreferencePair],
    ontology: Ontology,
) -> list[str]:
    """Return what differs between the file and the site as it is now."""
    texts = {report.report_id: report.text for report in site.reports}
    now = {**_inputs(site), "ontology": ontology.digest}
    changed = [name for name, value in now.items() if header.get(name) != value]
    candidates = header.get("candidates")
    for name, value in (candidates if isinstance(candidates, dict) else {}).items():
        path = candidates_path(site, name)
        if path.exists() and digest_file(path) != value:
            changed.append(f"candidates of {name!r}")
    intact = header.get("pairs") == len(pairs) and header.get("digest") == pairs_digest(pairs)
    if not changed and not (
        intact
        and all(
            pair.report_id in texts
            and pair.pair_id == _pair_id(texts[pair.report_id], pair.chosen, pair.rejected)
            for pair in pairs
        )
    ):
        changed.append("pairs")
    return changed


def _inputs(site: SiteDirectory) -> dict[str, str]:
    """Return the hashes of the reports and annotations that decide the pairs."""
    reports = pair_reports(site)
    annotations = [
        [
            a.report_id,
            a.structure.to_json(),
            sorted(a.ignore.diseases),
            sorted(a.ignore.locations_of),
        ]
        for a in (site.annotations.get(r.report_id) for r in reports)
        if a is not None
    ]
    return {
        "reports": digest(
            [[r.report_id, r.split, report_hash(r.text), r.home_site] for r in reports]
        ),
        "annotations": digest(annotations),
    }


def _of_report(site: SiteDirectory, report: Report, error: DataError) -> DataError:
    return DataError(
        f"report {report.report_id!r}: {error.what}", why=error.why, fix=error.fix, site=site.name
    )


def _too_long(site: SiteDirectory, report: Report, length: int, limit: int) -> DataError:
    return DataError(
        f"the pair of report {report.report_id!r} needs {length} tokens, the limit is {limit}",
        why="nothing is ever cut, a cut answer would be trained on as the right one",
        fix="raise --max-length (at most to the base model's context), or leave such pairs out "
        "with --on-too-long drop",
        site=site.name,
    )
