"""The non-IID audit: support, prevalence and divergence of a federation's cohorts. Pure.

The shape of the paper's Tables 2, 6 and 7. A simulated federation has every row in one place and is
compared with permutations; a deployment has sizes and prevalences only, some of them withheld.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedpref.data import case_mix_divergence, permutation_test

COHORTS: Final[tuple[str, ...]] = ("train_reports", "train_pairs", "dev_reports", "dev_pairs")
PERMUTATIONS: Final = 1999
SEED: Final = 20260713

Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class SiteCells:
    """What is known of one cohort at one site.

    `rows` in the cohort, `positive` ones with at least one disease, and the share of rows with each
    label. None is unknown or withheld; there is no prevalence at all without rows.
    """

    rows: int | None
    positive: int | None
    prevalence: tuple[float | None, ...] | None


@dataclass(frozen=True)
class CohortAudit:
    """One cohort over all sites; shares and divergences are fractions.

    `rows` counts the rows of the sites that tell. `overall` is the prevalence over these rows, None
    for a label that one of them withholds. `divergence` is over `divergence_labels` labels, those
    that have an overall prevalence; None with fewer than two sites with rows. The last three are of
    the permutation test, None without one.
    """

    cohort: str
    rows: int
    sizes: Mapping[str, int | None]
    positive: Mapping[str, int | None]
    prevalence: Mapping[str, tuple[float | None, ...] | None]
    overall: tuple[float | None, ...]
    divergence: float | None
    divergence_labels: int
    null_95: float | None = None
    ratio: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class NonIidAudit:
    """The audit of a federation; `labels` are the diseases in canonical order, then "normal"."""

    mode: str
    synthetic: bool
    labels: tuple[str, ...]
    sites: tuple[str, ...]
    cohorts: tuple[CohortAudit, ...]
    permutations: int | None = None
    seed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as a JSON value, as `fedpref audit --json` prints it.

        {"kind": "audit", "mode": "simulation"|"deployment", "synthetic": bool,
         "labels": [L names], "sites": [K names], "permutations": n|null, "seed": n|null,
         "support": [{"site": name, "train_reports": n, "train_reports_positive": n,
                      "train_pairs": n, "train_pairs_positive": n, "dev_reports": …}, …],
         "cohorts": [{"cohort": "train_reports"|"train_pairs"|"dev_reports"|"dev_pairs",
                      "rows": n, "sizes": {site: n|null}, "positive": {site: n|null},
                      "prevalence": {site: [L shares|null]|null}, "overall": [L shares|null],
                      "divergence": D|null, "divergence_labels": n,
                      "null_95": D|null, "ratio": x|null, "p_value": p|null}, …]}

        Shares, D and p are fractions. `support` repeats sizes and positives, a row a site; an entry
        is null if it is withheld, or its cohort is not in `cohorts`, as pairs are not before
        `fedpref pairs`.
        """
        return {
            "kind": "audit",
            "mode": self.mode,
            "synthetic": self.synthetic,
            "labels": list(self.labels),
            "sites": list(self.sites),
            "permutations": self.permutations,
            "seed": self.seed,
            "support": self.support(),
            "cohorts": [
                {
                    **vars(cohort),
                    "sizes": dict(cohort.sizes),
                    "positive": dict(cohort.positive),
                    "prevalence": {
                        site: None if shares is None else list(shares)
                        for site, shares in cohort.prevalence.items()
                    },
                    "overall": list(cohort.overall),
                }
                for cohort in self.cohorts
            ],
        }

    def support(self) -> list[dict[str, Any]]:
        """Return one row a site: the rows and the positive rows of every cohort."""
        known = {cohort.cohort: cohort for cohort in self.cohorts}
        rows: list[dict[str, Any]] = []
        for site in self.sites:
            row: dict[str, Any] = {"site": site}
            for name in COHORTS:
                cohort = known.get(name)
                row[name] = None if cohort is None else cohort.sizes.get(site)
                row[f"{name}_positive"] = None if cohort is None else cohort.positive.get(site)
            rows.append(row)
        return rows


def simulated_audit(
    labels: Sequence[str],
    cohorts: Mapping[str, Mapping[str, Labels]],
    *,
    synthetic: bool,
    permutations: int = PERMUTATIONS,
    seed: int = SEED,
) -> NonIidAudit:
    """Return the audit of pooled rows: for each cohort and site (n, L) labels, the last "normal".

    Every cohort names the same sites. Divergence is compared with `permutations` that move intact
    rows between sites and keep the sites' sizes.
    """
    audits = []
    for name, rows in cohorts.items():
        found = {site: site_cells(matrix) for site, matrix in rows.items()}
        observed = _cohort(name, labels, found)
        test: dict[str, float | None] = {}
        if observed.divergence is not None:
            matrices = list(rows.values())
            at = np.repeat(np.arange(len(matrices)), [len(matrix) for matrix in matrices])
            result = permutation_test(
                np.concatenate(matrices), at, permutations=permutations, seed=seed
            )
            test = {"null_95": result.null_95, "ratio": result.ratio, "p_value": result.p_value}
        audits.append(CohortAudit(**{**vars(observed), **test}))
    sites = _sites(cohorts)
    return NonIidAudit(
        "simulation", synthetic, tuple(labels), sites, tuple(audits), permutations, seed
    )


def deployed_audit(
    labels: Sequence[str],
    cohorts: Mapping[str, Mapping[str, SiteCells]],
    *,
    synthetic: bool,
) -> NonIidAudit:
    """Return the audit of what sites tell: prevalences, and D over the labels that all tell.

    A site that withholds its size, or has no rows, takes no part in D and the overall prevalence.
    """
    audits = tuple(_cohort(name, labels, found) for name, found in cohorts.items())
    return NonIidAudit("deployment", synthetic, tuple(labels), _sites(cohorts), audits)


def site_cells(labels: Labels) -> SiteCells:
    """Return the cells of one cohort at one site from its (n, L) labels, the last one "normal"."""
    rows = len(labels)
    positive = int(labels[:, :-1].any(axis=1).sum())
    shares = tuple(float(share) for share in labels.mean(axis=0)) if rows else None
    return SiteCells(rows, positive, shares)


def withhold(cells: SiteCells, minimum: int) -> SiteCells:
    """Return the cells without those over fewer than `minimum` rows.

    A label's share goes if fewer rows have it, or if fewer have it not. The positive rows go
    always: with the normal ones they would tell how many rows are undecided.
    """
    if cells.rows is None or cells.prevalence is None or cells.rows < minimum:
        return SiteCells(None, None, None)
    rows = cells.rows

    def shown(share: float | None) -> float | None:
        if share is None:
            return None
        have = round(share * rows)
        return share if min(have, rows - have) >= minimum else None

    return SiteCells(rows, None, tuple(shown(share) for share in cells.prevalence))


def _cohort(name: str, labels: Sequence[str], found: Mapping[str, SiteCells]) -> CohortAudit:
    telling = [c for c in found.values() if c.rows and c.prevalence is not None]
    sizes = np.array([c.rows for c in telling], dtype=np.float64)
    # NaN for what is withheld: a label that any telling site withholds has no overall prevalence.
    shares = np.array([c.prevalence for c in telling], dtype=np.float64)
    shares = shares.reshape(len(telling), len(labels))
    overall: list[float | None] = [None] * len(labels)
    known = np.zeros(len(labels), dtype=bool)
    divergence = None
    if telling:
        mean = (sizes[:, None] * shares).sum(axis=0) / sizes.sum()
        known = ~np.isnan(mean)
        overall = [float(p) if k else None for p, k in zip(mean, known, strict=True)]
        if len(telling) > 1 and known.any():
            divergence = case_mix_divergence(sizes, shares[:, known])
    return CohortAudit(
        cohort=name,
        rows=int(sizes.sum()),
        sizes={site: c.rows for site, c in found.items()},
        positive={site: c.positive for site, c in found.items()},
        prevalence={site: c.prevalence for site, c in found.items()},
        overall=tuple(overall),
        divergence=divergence,
        divergence_labels=int(known.sum()),
    )


def _sites(cohorts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(site for found in cohorts.values() for site in found))
