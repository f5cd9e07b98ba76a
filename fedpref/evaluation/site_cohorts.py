"""The four cohorts of the non-IID audit, from site directories or from what sites hand over."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpref.data import SiteDirectory
from fedpref.data.cohort import case_labels
from fedpref.errors import DataError
from fedpref.evaluation.noniid import Labels, SiteCells, site_cells, withhold
from fedpref.preference.candidates import PAIR_SPLITS
from fedpref.preference.dataset import read_pairs
from fedpref.task import ONTOLOGY, Ontology

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
_FIX: Final = "hand over what `fedpref audit SITE --deployment --json` prints"


def label_names(ontology: Ontology = ONTOLOGY) -> tuple[str, ...]:
    """Return the names of the columns of `case_labels`."""
    return (*ontology.diseases, "normal")


def read_cohorts(sites: Sequence[SiteDirectory]) -> dict[str, dict[str, Labels]]:
    """Return by cohort and site the (n, L) case labels of train and dev reports and pairs.

    The labels of a pair are those of its report. Before any site has pairs, the cohorts of pairs
    are left out. Raises DataError if only some sites have pairs, pairs are stale, or two sites have
    one name.
    """
    names: dict[str, Path] = {}
    for site in sites:
        if site.name in names:
            raise DataError(
                "two sites have this name",
                why=f"the other one is {names[site.name]}",
                file=site.path,
                site=site.name,
                fix="give every site.toml a name of its own",
            )
        names[site.name] = site.path
    with_pairs = any(site.pairs_path.exists() for site in sites)
    cohorts: dict[str, dict[str, Labels]] = {}
    for split in PAIR_SPLITS:
        cohorts[f"{split}_reports"] = {
            site.name: _labels(site, [r.report_id for r in site.split(split)]) for site in sites
        }
        if with_pairs:
            cohorts[f"{split}_pairs"] = {
                site.name: _labels(site, [p.report_id for p in read_pairs(site, split=split)])
                for site in sites
            }
    return cohorts


def told_cells(site: SiteDirectory) -> dict[str, dict[str, SiteCells]]:
    """Return by cohort what the site's policy lets out of its own cells: see `withhold`."""
    return {
        cohort: {site.name: withhold(site_cells(rows[site.name]), site.policy.min_cell_size)}
        for cohort, rows in read_cohorts([site]).items()
    }


def _labels(site: SiteDirectory, report_ids: Sequence[str]) -> Labels:
    return case_labels([site.annotations[name] for name in report_ids], site.ontology)


class _Told(BaseModel):
    # What the audit prints holds more; sizes and prevalences are all that is taken from it.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


class ToldCohort(_Told):
    """Sizes and prevalences of one cohort by site; null is withheld."""

    cohort: Literal["train_reports", "train_pairs", "dev_reports", "dev_pairs"]
    sizes: dict[str, Count | None]
    prevalence: dict[str, list[Share | None] | None]


class ToldAudit(_Told):
    """What one or several sites hand over: the audit's JSON, or just these keys of it."""

    labels: list[str]
    synthetic: bool = False
    cohorts: list[ToldCohort]

    @model_validator(mode="after")
    def _fits(self) -> "ToldAudit":
        seen: set[str] = set()
        for cohort in self.cohorts:
            if cohort.cohort in seen:
                raise ValueError(f"{cohort.cohort} is given twice")
            seen.add(cohort.cohort)
            for site in cohort.sizes.keys() ^ cohort.prevalence.keys():
                raise ValueError(f"{cohort.cohort} has no size or no prevalence of {site!r}")
            for site, shares in cohort.prevalence.items():
                if shares is not None and len(shares) != len(self.labels):
                    raise ValueError(
                        f"{cohort.cohort} has {len(shares)} prevalences of {site!r} for "
                        f"{len(self.labels)} labels"
                    )
                if shares is None and cohort.sizes[site]:
                    raise ValueError(f"{cohort.cohort} has rows but no prevalences of {site!r}")
        return self

    def cells(self) -> dict[str, dict[str, SiteCells]]:
        """Return the cells by cohort and site."""
        return {
            cohort.cohort: {
                site: SiteCells(size, None, _tuple(cohort.prevalence[site]))
                for site, size in cohort.sizes.items()
            }
            for cohort in self.cohorts
        }


def read_told(path: Path) -> ToldAudit:
    """Return the sizes and prevalences of a JSON file; DataError names file and key."""
    try:
        return ToldAudit.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"the file cannot be read ({error.strerror})", file=path, fix="correct the path"
        ) from None
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(map(str, item["loc"])) or None
        what = item["msg"].removeprefix("Value error, ")
        raise DataError(what, file=path, key=key, fix=_FIX) from None


def merge_cells(
    parts: Sequence[tuple[Path, Mapping[str, Mapping[str, SiteCells]]]],
) -> dict[str, dict[str, SiteCells]]:
    """Return the cells of all parts together, each with its path for errors.

    Raises DataError if two parts tell of the same site.
    """
    merged: dict[str, dict[str, SiteCells]] = {}
    for source, cohorts in parts:
        for cohort, found in cohorts.items():
            into = merged.setdefault(cohort, {})
            for site, cells in found.items():
                if site in into:
                    raise DataError(
                        f"the site's {cohort.replace('_', ' ')} are given twice",
                        file=source,
                        site=site,
                        fix="give every site once",
                    )
                into[site] = cells
    return merged


def _tuple(shares: list[float | None] | None) -> tuple[float | None, ...] | None:
    return None if shares is None else tuple(shares)
