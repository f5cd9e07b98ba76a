"""The Open-i reader: its tables on invented rows, its counts on a user's copy of the collection."""

import csv
import os
from pathlib import Path

import pytest

from fedpref.data import Annotation
from fedpref.data.openi import read_openi
from fedpref.data.openi_codes import decode, parse_codes
from fedpref.errors import DataError
from fedpref.task import Ignore, Structure

COLUMNS = ["uid", "MeSH", "Problems", "image", "indication", "comparison", "findings", "impression"]
COPY = Path(
    os.environ.get(
        "FEDPREF_OPENI", Path(__file__).parents[2] / ".." / "shared/data/openi/reports.csv"
    )
)
OPACITY, EFFUSION, SILHOUETTE = "lung opacity", "pleural effusion", "enlarged cardiac silhouette"
EDEMA, FAILURE = "pulmonary edema/hazy opacity", "fluid overload/heart failure"


def table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        for number, row in enumerate(rows, start=1):
            writer.writerow({"uid": str(number), "impression": "Some words.", **row})
    return path


@pytest.mark.parametrize(
    ("codes", "findings", "diseases", "masked"),
    [
        ("normal", [], [], []),
        (
            "Opacity/lung/base/left",
            [(OPACITY, "left lung"), (OPACITY, "left lower lung zone")],
            [OPACITY],
            [],
        ),
        ("Opacity/left/lung/base ", [(OPACITY, "left lower lung zone")], [OPACITY], []),
        ("Opacity/pulmonary alveoli/bilateral", [(OPACITY, "left lung"), (OPACITY, "right lung")],
         [OPACITY], []),
        ("Opacity/lung/breast/right", [], [], [OPACITY]),
        ("Opacity/thorax", [], [], [OPACITY]),
        ("Density/lung/right", [], [], [OPACITY]),
        ("Infiltrate/lung/middle lobe/right", [(OPACITY, "right mid lung zone")], [OPACITY], []),
        ("Airspace Disease/lingula", [(OPACITY, "left mid lung zone")], [OPACITY], []),
        ("Airspace Disease/retrocardiac/left", [(OPACITY, "left lower lung zone")], [OPACITY], []),
        ("Airspace Disease/retrocardiac", [], [OPACITY], []),
        ("Airspace Disease/base", [], [OPACITY], []),
        ("Pleural Effusion/right/small", [(EFFUSION, "right lung")], [EFFUSION], []),
        ("Pleural Effusion/borderline", [], [], [EFFUSION]),
        ("Costophrenic Angle/left/blunted", [], [], [EFFUSION]),
        ("Costophrenic Angle/left/obscured", [], [], []),
        ("Cardiomegaly/mild", [(SILHOUETTE, "cardiac silhouette")], [SILHOUETTE], []),
        ("Cardiomegaly/borderline", [], [], [SILHOUETTE]),
        ("Cardiac Shadow/enlarged", [(SILHOUETTE, "cardiac silhouette")], [SILHOUETTE], []),
        ("Cardiac Shadow/prominent", [], [], [SILHOUETTE]),
        ("Cardiac Shadow/shift right", [], [], []),
        ("Heart Ventricles/left/enlarged", [], [], [SILHOUETTE]),
        ("Pulmonary Congestion", [], [], [EDEMA, FAILURE]),
        ("Pulmonary Congestion;Pulmonary Edema", [], [EDEMA], [FAILURE]),
        ("Heart Failure/left", [], [FAILURE], []),
        ("Hydropneumothorax/right", [], [], [EFFUSION, "pneumothorax"]),
        ("Nodule/lung/upper lobe/right;Emphysema", [], [], []),
        ("Opacity/lung;Opacity/breast", [], [OPACITY], []),
    ],
)  # fmt: skip
def test_code_tables(
    codes: str, findings: list[tuple[str, str]], diseases: list[str], masked: list[str]
) -> None:
    coded = decode(parse_codes(codes))
    assert coded.structure == Structure(diseases, findings)
    assert coded.masked == set(masked)


def test_a_coded_disease_without_place_leaves_places_open(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", {"MeSH": "Pneumonia;Pulmonary Atelectasis/left"})
    (annotation,) = read_openi(path).annotations
    assert annotation.ignore == Ignore(locations_of=frozenset({"pneumonia"}))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("May represent early pneumonia.", {"pneumonia"}),
        ("No effusion. Possible pneumonia", {"pneumonia"}),
        ("No pneumonia.", set()),
        ("No change in the effusion.", set()),  # crude: counts as denied
        ("Effusion has resolved.", set()),
        ("Trace pericardial effusion.", set()),
        ("Mild edema.Heart normal.", {EDEMA}),
    ],
)
def test_an_uncoded_mention_is_masked(tmp_path: Path, text: str, masked: set[str]) -> None:
    path = table(tmp_path / "t.csv", {"MeSH": "normal", "findings": text})
    collection = read_openi(path)
    assert collection.annotations[0].ignore.diseases == masked
    assert set(collection.masked_by_text) == masked


def test_counts_of_invented_rows(tmp_path: Path) -> None:
    counts = read_openi(
        table(
            tmp_path / "t.csv",
            {"MeSH": "normal", "findings": "Clear lungs"},
            {"MeSH": "normal", "findings": "clear LUNGS."},
            {"MeSH": "Density/lung"},  # only masked
            {"MeSH": "Cicatrix", "findings": "Perhaps pneumonia."},  # by its text, not by codes
            {"MeSH": "Density/lung;Cardiomegaly"},  # placed, but in no lung
            {"MeSH": "Pleural Effusion/left"},
            {"MeSH": "Pleural Effusion/left;Infiltrate/base/right"},
            {"MeSH": "Pneumonia"},  # without a place
        )
    ).counts()
    assert {key: value for key, value in counts.items() if isinstance(value, int)} == {
        "usable": 8,
        "normal": 2,
        "with_disease": 4,
        "with_finding": 3,
        "with_lung_finding": 2,
        "with_subregion_finding": 1,
        "only_masked": 1,
        "distinct_texts": 3,
        "distinct_findings": 4,
    }
    diseases = counts["diseases"]
    assert isinstance(diseases, dict)
    assert list(diseases[OPACITY].values()) == [1, 1, 2, 0]
    assert list(diseases["pneumonia"].values()) == [1, 0, 0, 1]


def test_exclusions_and_text(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv",
        {"MeSH": "No Indexing"},
        {"MeSH": "Technical Quality of Image Unsatisfactory "},
        {"MeSH": "Technical Quality of Image Unsatisfactory;Pneumonia"},
        {"MeSH": "normal", "impression": " . "},
        {"MeSH": "normal", "findings": "Clear &gt; dark.", "impression": "Normal."},
    )
    collection = read_openi(path)
    assert collection.excluded == {"no_indexing": 1, "technical_only": 1, "no_text": 1}
    assert [r.report_id for r in collection.reports] == ["openi-3", "openi-5"]
    assert collection.reports[1].text == "Clear > dark.\nNormal."
    assert collection.normal == 1
    assert collection.only_masked == 0
    assert collection.annotations[1] == Annotation("openi-5", Structure())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("uid,MeSH\n1,normal\n", "lacks the columns findings, impression"),
        ("uid,MeSH,findings,impression\n1,normal,a,b\n1,normal,a,b\n", "repeats that of line 2"),
        ("uid,MeSH,findings,impression\n1,normal,a\n", "too few cells"),
        ("uid,MeSH,findings,impression\n1,normal,a,b,c\n", "too many"),
        ('uid,MeSH,findings,impression\n1,normal,"a,b\n', "malformed"),
    ],
)
def test_bad_tables(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_openi(path)


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_openi(tmp_path / "none.csv")


@pytest.mark.skipif(not COPY.exists(), reason="no copy of Open-i (set FEDPREF_OPENI)")
def test_counts_of_the_collection() -> None:
    counts = read_openi(COPY).counts()
    diseases = counts.pop("diseases")
    locations = counts.pop("locations")
    assert counts == {
        "usable": 2778,
        "excluded": {"no_indexing": 71, "technical_only": 3, "no_text": 18},
        "normal": 1019,
        "with_disease": 657,
        "with_finding": 625,
        "with_lung_finding": 469,
        "with_subregion_finding": 406,
        "only_masked": 129,
        "distinct_texts": 2273,
        "distinct_findings": 53,
    }
    assert [list(row.values()) for row in diseases.values()] == [  # type: ignore[attr-defined]
        [355, 328, 102, 5],
        [111, 105, 39, 7],
        [236, 202, 9, 48],
        [242, 242, 39, 0],
        [31, 5, 38, 15],
        [19, 17, 3, 1],
        [18, 17, 0, 6],
        [8, 0, 49, 3],
        [29, 25, 0, 25],
    ]
    assert list(locations.values()) == [  # type: ignore[attr-defined]
        321, 17, 25, 39, 188, 9, 0, 348, 9, 25, 31, 240, 10, 0, 0, 0, 242, 0
    ]  # fmt: skip
