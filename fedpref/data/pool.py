"""The union of several sites as one site directory: what the Central arm trains on."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpref.data.records import Report
from fedpref.data.site import SiteDirectory, write_site
from fedpref.errors import DataError, FedPrefError, raise_all


def write_pool(path: Path, sites: Sequence[SiteDirectory], *, name: str) -> SiteDirectory:
    """Write and return the union of `sites`; every report names its site as `home_site`.

    Reports stand in the natural order of their ids ("2" before "10"), which is the order of the
    cohort before it was divided among sites, and never site after site. Raises DataError if a
    report id or a patient occurs at two sites.
    """
    raise_all(_shared(sites, "report_id") + _shared(sites, "patient_id"))
    reports = [replace(r, home_site=site.name) for site in sites for r in site.reports]
    annotations = {key: value for site in sites for key, value in site.annotations.items()}
    reports.sort(key=_natural)
    write_site(
        path,
        name=name,
        description=f"the union of {', '.join(site.name for site in sites)}",
        synthetic=any(site.info.synthetic for site in sites),
        policy=sites[0].policy,
        reports=reports,
        annotations=[annotations[report.report_id] for report in reports],
    )
    return SiteDirectory.load(path, sites[0].ontology)


def _natural(report: Report) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", report.report_id)
    # Odd places are digits, so that equal places hold equal types.
    return [int(p) if at % 2 else p for at, p in enumerate(parts)], report.report_id


def _shared(sites: Sequence[SiteDirectory], key: str) -> list[FedPrefError]:
    seen: dict[str, str] = {}
    problems: list[FedPrefError] = []
    for site in sites:
        names = {getattr(report, key) for report in site.reports}
        others = sorted({seen[name] for name in names & seen.keys()})
        problems += [
            DataError(
                f"shares a {key} with site {other}",
                why="one pooled cohort holds every report and every patient once",
                fix="give ids that differ between sites",
                file=site.path / "reports.jsonl",
                site=site.name,
            )
            for other in others
        ]
        seen |= dict.fromkeys(names, site.name)
    return problems
