"""The union of sites: every row once, in cohort order, with its home."""

from pathlib import Path

import pytest

from fedpref.data import Annotation, Report, SiteDirectory, write_pool, write_site
from fedpref.errors import FedPrefError
from fedpref.task import Structure

ANNOTATED = Structure(["pneumothorax"], [])


def site(
    folder: Path, name: str, ids: list[str], patients: list[str] | None = None
) -> SiteDirectory:
    write_site(
        folder / name,
        name=name,
        synthetic=True,
        reports=[
            Report(key, patient, "train", f"Text {key}.")
            for key, patient in zip(ids, patients or [f"p{key}" for key in ids], strict=True)
        ],
        annotations=[Annotation(key, ANNOTATED) for key in ids],
    )
    return SiteDirectory.load(folder / name)


def test_the_union_holds_every_report_in_cohort_order_with_its_home(tmp_path: Path) -> None:
    sites = [site(tmp_path, "one", ["r2", "r10"]), site(tmp_path, "two", ["r1", "r9", "r11"])]
    pool = write_pool(tmp_path / "pool", sites, name="central")
    assert [r.report_id for r in pool.reports] == ["r1", "r2", "r9", "r10", "r11"]
    assert [r.home_site for r in pool.reports] == ["two", "one", "two", "one", "two"]
    assert pool.name == "central"
    assert pool.info.synthetic
    assert {key: a.structure for key, a in pool.annotations.items()} == dict.fromkeys(
        ("r1", "r2", "r9", "r10", "r11"), ANNOTATED
    )


def test_the_order_of_the_sites_does_not_matter(tmp_path: Path) -> None:
    sites = [site(tmp_path, "one", ["a1", "b"]), site(tmp_path, "two", ["a02", "1", "x-3"])]
    pools = [
        write_pool(tmp_path / f"pool-{n}", order, name="central")
        for n, order in enumerate((sites, sites[::-1]))
    ]
    assert pools[0].reports == pools[1].reports


@pytest.mark.parametrize(
    ("ids", "patients", "key"),
    [(["r1"], ["other"], "report_id"), (["r3"], ["pr1"], "patient_id")],
)
def test_what_two_sites_share_is_refused_without_naming_it(
    tmp_path: Path, ids: list[str], patients: list[str], key: str
) -> None:
    sites = [site(tmp_path, "one", ["r1", "r2"]), site(tmp_path, "two", ids, patients)]
    with pytest.raises(FedPrefError, match=f"shares a {key} with site one") as caught:
        write_pool(tmp_path / "pool", sites, name="central")
    assert "r1" not in str(caught.value).replace(str(tmp_path), "")
    assert not (tmp_path / "pool").exists()
