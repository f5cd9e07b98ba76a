"""Pools of candidates at sites, for the candidate contrast: which files, and what they say."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from fedpref.data import Report, SiteDirectory
from fedpref.errors import ConfigError, DataError
from fedpref.evaluation.headroom import PoolContrast, pool_contrast
from fedpref.preference.candidates import candidates_path, read_candidates, report_hash
from fedpref.preference.contrast import report_contrast
from fedpref.preference.pairs import MIN_MARGIN
from fedpref.task import Projection, match_counts, project

# The test split stays locked: its annotations serve one evaluation, after selection.
CONTRAST_SPLITS: Final = ("train", "dev", "diagnostic")
DRAWS: Final = 10_000
SEED: Final = 20260713


@dataclass(frozen=True)
class Pool:
    """Candidates that are looked at together, by the stems of their files; the order breaks ties.

    Repeated samples of one model are one file, and so one name, a sample.
    """

    name: str
    candidates: tuple[str, ...]


def parse_pool(text: str, available: Sequence[str]) -> Pool:
    """Return the pool of `NAME,NAME,…` or `LABEL=NAME,NAME,…`; names may be patterns (`sample-*`).

    A pattern takes the available names that match, in their order. Raises ConfigError if it takes
    none, or the pool has fewer than two candidates.
    """
    label, equals, rest = text.rpartition("=")
    chosen: dict[str, None] = {}
    for part in (part.strip() for part in rest.split(",")):
        pattern = any(character in part for character in "*?[")
        matching = [name for name in available if fnmatchcase(name, part)] if pattern else [part]
        if not part or not matching:
            raise ConfigError(
                f"{part!r} names no candidates",
                key="--pool",
                fix=f"there are {', '.join(available) or 'none'}",
            )
        chosen.update(dict.fromkeys(matching))
    if len(chosen) < 2:
        raise ConfigError(
            f"the pool {text!r} has one candidate a report",
            why="a contrast is between several",
            key="--pool",
            fix="name two or more; repeated samples of one model are one file a sample",
        )
    return Pool(label.strip() if equals else rest.strip(), tuple(chosen))


def available_candidates(sites: Sequence[SiteDirectory]) -> tuple[str, ...]:
    """Return the names of the candidates' files of all sites, sorted."""
    stems = {
        path.name.removesuffix(".jsonl")
        for site in sites
        for path in site.candidates_dir.glob("*.jsonl")
    }
    return tuple(sorted(stems))


def contrast_pools(
    sites: Sequence[SiteDirectory],
    pools: Sequence[Pool],
    *,
    split: str,
    baseline: str | None = None,
    min_margin: float = MIN_MARGIN,
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[PoolContrast]:
    """Return the contrast of every pool on one split of all sites together.

    `baseline` names a candidates' file, in the pools or not. Raises DataError if a file is missing,
    lacks a report of the split, or was made from other texts; ConfigError for the test split.
    """
    if split not in CONTRAST_SPLITS:
        raise ConfigError(
            f"the contrast of the {split} split was asked for",
            why="its annotations are for one evaluation after selection",
            key="--split",
            fix=f"use {', '.join(CONTRAST_SPLITS)}",
        )
    rows = [(site, report) for site in sites for report in site.split(split)]
    if not rows:
        raise DataError(f"no site has a {split} report", fix="choose another --split")
    needed = dict.fromkeys(name for pool in pools for name in pool.candidates)
    if baseline is not None:
        needed[baseline] = None
    projected = {
        name: [found for site in sites for found in _projections(site, name, site.split(split))]
        for name in needed
    }
    notes = [site.annotations[report.report_id] for site, report in rows]
    site_names = [site.name for site, _ in rows]
    patients = [report.patient_id for _, report in rows]
    baseline_counts = None
    if baseline is not None:
        baseline_counts = [
            match_counts(found.structure, note.structure, note.ignore)
            for found, note in zip(projected[baseline], notes, strict=True)
        ]
    results = []
    for pool in pools:
        reports = [
            report_contrast(
                {name: projected[name][row] for name in pool.candidates},
                note.structure,
                ignore=note.ignore,
                min_margin=min_margin,
            )
            for row, note in enumerate(notes)
        ]
        results.append(
            pool_contrast(
                pool.name,
                pool.candidates,
                reports,
                site_names,
                patients,
                baseline=baseline,
                baseline_counts=baseline_counts,
                draws=draws,
                seed=seed,
            )
        )
    return results


def _projections(site: SiteDirectory, name: str, reports: Sequence[Report]) -> list[Projection]:
    """Return what a candidates' file projects to for these reports, in their order."""
    path = candidates_path(site, name)
    if not path.exists():
        raise DataError(
            f"there are no candidates {name!r} here",
            file=path,
            site=site.name,
            fix=f"there are {', '.join(available_candidates([site])) or 'none'}; "
            f"run `fedpref teach {site.path}` for others",
        )
    candidates = {candidate.report_id: candidate for candidate in read_candidates(path)}
    found = [candidates.get(report.report_id) for report in reports]
    missing = sum(candidate is None for candidate in found)
    stale = sum(
        candidate is not None and candidate.report_hash != report_hash(report.text)
        for candidate, report in zip(found, reports, strict=True)
    )
    if missing or stale:
        raise DataError(
            f"of {len(reports)} reports, {missing} have no candidate {name!r} and {stale} have one "
            "that was made from another text",
            file=path,
            site=site.name,
            fix=f"run `fedpref teach {site.path}` with this teacher",
        )
    return [project(candidate.text, site.ontology) for candidate in found if candidate is not None]
