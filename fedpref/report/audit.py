"""The tables of the non-IID audit, in the shape of the paper's Tables 6 and 7. Pure."""

from collections.abc import Sequence

from fedpref.report.result import Audit, AuditCohort
from fedpref.report.tables import COUNT, PERCENT, TEXT, Column, Kind, Table, fixed
from fedpref.report.text import NO_DATA

_UNIT = {"simulation": "", "deployment": "No data: withheld by a site's policy, or no rows."}


def _points(value: float | None) -> str:
    return NO_DATA if value is None else f"{100 * value:.2f}"


DIVERGENCE = Kind(
    _points, lambda v: ("" if v is None else f"{100 * v:.2f}",), suffixes=("_points",)
)


def audit_tables(audit: Audit) -> tuple[Table, ...]:
    """Return support, divergence of every cohort, then sizes and prevalences of each one."""
    return (
        _support(audit),
        _divergence(audit),
        *(_prevalence(audit, cohort) for cohort in audit.cohorts),
    )


def _support(audit: Audit) -> Table:
    # In a deployment it would tell, with the normal ones, how many are undecided: never there.
    positive = audit.mode == "simulation"
    keys = [
        (f"{split}_{key}", f"{split.title()} {title}")
        for split in ("train", "dev")
        for key, title in (
            ("reports", "reports"),
            *([("reports_positive", "positive")] if positive else []),
            ("pairs", "pairs"),
        )
    ]
    rows = [(site.site, *(getattr(site, key) for key, _ in keys)) for site in audit.support]
    totals = [_total(column) for column in list(zip(*rows, strict=True))[1:]]
    return Table(
        name="audit-support",
        title="Support",
        columns=(Column("site", "Site", TEXT), *(Column(key, title, COUNT) for key, title in keys)),
        rows=(*rows, ("all", *totals)) if rows else (),
        notes=("Positive: reports with any disease.",) if positive else (),
        strong=frozenset({len(rows)}),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _divergence(audit: Audit) -> Table:
    simulated = audit.mode == "simulation"
    chance = (
        Column("null_95", "Null 95th", DIVERGENCE),
        Column("ratio", "Ratio", fixed(2)),
        Column("p", "p", fixed(4)),
    )
    notes = [_UNIT[audit.mode]] if _UNIT[audit.mode] else []
    if simulated:
        notes.append(
            f"Null: {audit.permutations or 0:,} permutations of whole rows that keep the sites' "
            "sizes; p has the plus-one correction."
        )
    else:
        notes.append("Permutations need pooled rows: a deployment has no p value.")
    if any(cohort.divergence_labels < len(audit.labels) for cohort in audit.cohorts):
        notes.append("A divergence over fewer labels compares with no other one.")
    return Table(
        name="audit-divergence",
        title="Case-mix divergence",
        caption="D in percentage points: how far the sites' case mixes are from the common one.",
        columns=(
            Column("cohort", "Cohort", TEXT),
            Column("rows", "Rows", COUNT),
            Column("labels", "Labels", COUNT),
            Column("divergence", "Observed D", DIVERGENCE),
            *(chance if simulated else ()),
        ),
        rows=tuple(
            (
                _title(cohort),
                cohort.rows,
                cohort.divergence_labels,
                cohort.divergence,
                *((cohort.null_95, cohort.ratio, cohort.p_value) if simulated else ()),
            )
            for cohort in audit.cohorts
        ),
        notes=tuple(notes),
    )


def _prevalence(audit: Audit, cohort: AuditCohort) -> Table:
    notes = [
        "A report may have several diseases, so that columns need not sum to 100.",
        "Rows: "
        + ", ".join(
            f"{site} {NO_DATA if (size := cohort.sizes.get(site)) is None else f'{size:,}'}"
            for site in audit.sites
        )
        + ".",
    ]
    return Table(
        name=f"audit-prevalence-{cohort.cohort.replace('_', '-')}",
        title=f"Prevalence (%), {_title(cohort)}",
        columns=(
            Column("label", "Label", TEXT),
            *(Column(site, site, PERCENT) for site in audit.sites),
            Column("all", "All", PERCENT),
        ),
        rows=tuple(
            (
                label,
                *(
                    None if (shares := cohort.prevalence.get(site)) is None else shares[number]
                    for site in audit.sites
                ),
                cohort.overall[number],
            )
            for number, label in enumerate(audit.labels)
        ),
        notes=tuple(notes),
    )


def _title(cohort: AuditCohort) -> str:
    return cohort.cohort.replace("_", " ")
