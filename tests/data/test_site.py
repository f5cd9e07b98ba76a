"""The site directory: what is refused, how it is named, and that nothing half-written stays."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpref.data import (
    Annotation,
    Report,
    SiteDirectory,
    SitePolicy,
    check_site,
    site_directories,
    write_site,
)
from fedpref.errors import DataError, FedPrefErrors
from fedpref.task import ONTOLOGY, Ignore, Structure

KNOWN = ", ".join(ONTOLOGY.diseases)

REPORTS = [
    Report("r1", "p1", "train", "Left effusion.", home_site="north"),
    Report("r2", "p1", "train", "Clear lungs.\u2028New line."),
    Report("r3", "p2", "dev", "Pneumonia."),
]
ANNOTATIONS = [
    Annotation("r1", Structure([], [("pleural effusion", "left lung")])),
    Annotation("r2", Structure(), Ignore(frozenset({"pneumonia"}))),
    Annotation("r3", Structure(["pneumonia"]), Ignore(locations_of=frozenset({"pneumonia"}))),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "north"
    write_site(
        path,
        name="north",
        description='a "quoted" one',
        policy=SitePolicy(min_cell_size=7),
        reports=REPORTS,
        annotations=ANNOTATIONS,
    )
    return path


def append(path: Path, row: object) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(row if isinstance(row, str) else json.dumps(row))
        stream.write("\n")


def test_round_trip(site: Path) -> None:
    loaded = SiteDirectory.load(site)
    assert loaded.reports == tuple(REPORTS)
    assert list(loaded.annotations.values()) == ANNOTATIONS
    assert (loaded.name, loaded.description) == ("north", 'a "quoted" one')
    assert loaded.policy.min_cell_size == 7
    assert loaded.split("dev") == (REPORTS[2],)
    assert loaded.state_dir("f") == site / "state" / "f"
    assert check_site(site) == []


def test_repr_shows_no_text(site: Path) -> None:
    loaded = SiteDirectory.load(site)
    shown = repr(loaded) + repr(loaded.reports) + repr(loaded.annotations)
    assert "effusion" not in shown
    assert "p1" not in shown


GOOD = {"report_id": "r9", "patient_id": "p9", "split": "train", "text": "x"}
NOTE = {"report_id": "r1", "diseases": [], "findings": []}


def report(**changes: object) -> Callable[[Path], None]:
    return lambda site: append(site / "reports.jsonl", GOOD | changes)


def both(**changes: object) -> Callable[[Path], None]:
    def change(site: Path) -> None:
        report(**changes)(site)
        append(site / "annotations.jsonl", NOTE | {"report_id": "r9"})

    return change


def annotation(**changes: object) -> Callable[[Path], None]:
    def change(site: Path) -> None:
        append(site / "reports.jsonl", GOOD)
        append(site / "annotations.jsonl", NOTE | {"report_id": "r9"} | changes)

    return change


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (lambda s: append(s / "reports.jsonl", "{"), "reports.jsonl:4", "not valid JSON"),
        (report(report_id="r1"), "reports.jsonl:4", "repeats that of line 1"),
        (both(patient_id="p2"), "reports.jsonl:4", "also has a dev report (line 3)"),
        (report(text=" . \n"), "reports.jsonl:4", "report is empty"),
        (report(split="valid"), "reports.jsonl:4", "is none of"),
        (both(text="a\0b"), "reports.jsonl:4", "text holds a NUL"),
        (both(text="a\ud800b"), "reports.jsonl:4", "lone surrogate"),
        (both(patient_id="\udfff"), "reports.jsonl:4", "patient_id holds"),
        (report(text=None), "reports.jsonl:4", "NoneType"),
        (report(patient_id=19000001), "reports.jsonl:4", "patient_id is a int"),
        (report(report_id=" "), "reports.jsonl:4", "report_id is empty"),
        (report(patientid="x"), "reports.jsonl:4", "did you mean 'patient_id'"),
        (report(), "reports.jsonl:4", "no annotation"),
        (annotation(diseases=["Pneumonia"]), "annotations.jsonl:4", "did you mean 'pneumonia'"),
        (
            annotation(findings=[{"disease": "pneumonia", "location": "left base"}]),
            "annotations.jsonl:4",
            "unknown location",
        ),
        (annotation(findings=[{"disease": "pneumonia"}]), "annotations.jsonl:4", "missing loc"),
        (annotation(findings=["pneumonia"]), "annotations.jsonl:4", "not an object"),
        (annotation(ignore={"disease": []}), "annotations.jsonl:4", "did you mean 'diseases'"),
        (annotation(diseases=["flu"]), "annotations.jsonl:4", f"known are {KNOWN}"),
        (annotation(ignore={"diseases": ["flu"]}), "annotations.jsonl:4", f"known are {KNOWN}"),
        (
            annotation(diseases=["pneumonia"], ignore={"diseases": ["pneumonia"]}),
            "annotations.jsonl:4",
            "both",
        ),
        (
            lambda s: append(s / "annotations.jsonl", NOTE | {"report_id": "r8"}),
            "annotations.jsonl:4",
            "belongs to no report",
        ),
        (lambda s: append(s / "annotations.jsonl", NOTE), "annotations.jsonl:4", "repeats"),
        (lambda s: (s / "annotations.jsonl").unlink(), "annotations.jsonl", "cannot be read"),
        (lambda s: (s / "site.toml").unlink(), "site.toml", "cannot be read"),
        (lambda s: (s / "site.toml").write_text("name ="), "site.toml", "not TOML"),
        (
            lambda s: (s / "site.toml").write_text('name = "a/b"'),
            "site.toml, key name",
            "use letters, digits, . _ and -",
        ),
        (lambda s: (s / "site.toml").write_text('name = "a"\nx = 1'), "site.toml", "key x"),
        (
            lambda s: (s / "site.toml").write_text('name = "a"\ndescripton = ""'),
            "site.toml",
            "did you mean 'description'?",
        ),
        (
            lambda s: (s / "site.toml").write_text('name = "a"\n[policy]\nmin_cel_size = 9'),
            "key policy.min_cel_size",
            "did you mean 'min_cell_size'?",
        ),
        (
            lambda s: (s / "site.toml").write_text('name = "a"\n[policy]\nmin_cell_size = 0'),
            "site.toml",
            "policy.min_cell_size",
        ),
    ],
)
def test_bad_input_is_one_clear_error(
    site: Path, change: Callable[[Path], object], where: str, message: str
) -> None:
    change(site)
    (problem,) = check_site(site)
    assert where in str(problem)
    assert message in str(problem)
    assert "p1" not in str(problem)
    with pytest.raises(DataError):
        SiteDirectory.load(site)


def test_all_problems_at_once(site: Path) -> None:
    report(text="")(site)
    report(split="x", report_id="r8")(site)
    append(site / "annotations.jsonl", "[]")
    with pytest.raises(FedPrefErrors) as caught:
        SiteDirectory.load(site)
    assert len(caught.value.errors) == 3


def test_a_problem_hides_no_other(site: Path) -> None:
    (site / "site.toml").write_text('nmae = "north"')
    append(site / "reports.jsonl", "{")
    report(patient_id="p2", text="Seen twice.")(site)  # line 5: p2 is in dev, and no annotation
    append(site / "annotations.jsonl", NOTE | {"report_id": "r8"})  # perhaps of line 4
    shown = [str(problem) for problem in check_site(site)]
    expected = ["key name", "key nmae", "jsonl:4", "jsonl:5: the patient", "jsonl:5: the report"]
    assert len(shown) == len(expected)
    assert all(part in text for part, text in zip(expected, shown, strict=True))


def test_swapped_columns_show_no_text(site: Path) -> None:
    report(split="Small left effusion.", text="train")(site)
    assert "effusion" not in str(check_site(site)[0])


def test_a_byte_order_mark_is_no_error(site: Path) -> None:
    for name in ("reports.jsonl", "site.toml"):
        path = site / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert check_site(site) == []


@pytest.mark.parametrize("synthetic", [True, False])
def test_invented_reports_are_marked(tmp_path: Path, synthetic: bool) -> None:
    path = tmp_path / "s"
    write_site(path, name="s", synthetic=synthetic, reports=REPORTS, annotations=ANNOTATIONS)
    assert SiteDirectory.load(path).info.synthetic is synthetic


def test_missing_folders(tmp_path: Path) -> None:
    (problem,) = check_site(tmp_path / "none")
    assert "no such site directory" in str(problem)
    with pytest.raises(DataError, match="no such folder"):
        site_directories(tmp_path / "none")


def test_site_directories_are_sorted(site: Path, tmp_path: Path) -> None:
    write_site(tmp_path / "east", name="east", reports=REPORTS, annotations=ANNOTATIONS)
    (tmp_path / "notes").mkdir()
    assert site_directories(tmp_path) == [tmp_path / "east", site]


def test_a_failed_write_leaves_the_old_site(site: Path, tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield REPORTS[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_site(site, name="north", reports=broken(), annotations=[])
    assert check_site(site) == []
    assert [path.name for path in tmp_path.iterdir()] == ["north"]
