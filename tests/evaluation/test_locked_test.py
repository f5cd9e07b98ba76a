"""The locked test by hand: four measures, the interval, duplicates, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpref.data import Annotation, Report, SiteDirectory, write_site
from fedpref.errors import ConfigError, DataError
from fedpref.evaluation import locked_test, paired_cluster_bootstrap
from fedpref.evaluation.locked_test import Case, Duplicates, cases_digest, duplicates, locked_result
from fedpref.evaluation.metrics import EvaluationCounts, report_counts
from fedpref.task import Ignore, Projection, Structure

EMPTY = Structure()
LEFT = Structure(findings=[("atelectasis", "left lung")])
RIGHT = Structure(findings=[("atelectasis", "right lung")])
PNEUMONIA = Structure(diseases=["pneumonia"])


def case(
    number: int,
    target: Structure,
    *,
    text: str | None = None,
    site: str = "x",
    patient: str | None = None,
    ignore: Ignore = Ignore(),  # noqa: B008
) -> Case:
    name = f"r{number}"
    report = Report(name, patient or f"p{number}", "test", text or f"Report number {number}.")
    return Case(site, report, Annotation(name, target, ignore))


def answered(of: Case, answer: Structure | None) -> EvaluationCounts:
    """The counts of an answer; None is an answer without a valid object."""
    projection = (
        Projection(EMPTY, False, False, "no_object")
        if answer is None
        else Projection(answer, True, True, None)
    )
    return report_counts(projection, of.annotation.structure, of.annotation.ignore, truncated=False)


def policy(cases: list[Case], answers: list[Structure | None]) -> dict[str, EvaluationCounts]:
    return {c.key: answered(c, a) for c, a in zip(cases, answers, strict=True)}


@pytest.fixture
def cases() -> list[Case]:
    return [case(1, LEFT), case(2, RIGHT, site="y"), case(3, PNEUMONIA), case(4, EMPTY, site="y")]


def test_the_measures_by_hand(cases: list[Case]) -> None:
    # Findings: LEFT right, RIGHT answered as LEFT (fp, fn), nothing else: F1 = 2/(2+1+1) = 0.5.
    # Diseases: atelectasis right twice, pneumonia missed, atelectasis invented: 4/(4+1+1) = 2/3.
    fedpref = policy(cases, [LEFT, LEFT, None, Structure(diseases=["atelectasis"])])
    central = policy(cases, [LEFT, RIGHT, PNEUMONIA, EMPTY])
    result = locked_result(cases, fedpref=[fedpref], central=[central], draws=500).to_dict()
    fed, cen = result["policies"]["fedpref"], result["policies"]["central"]
    assert fed["location_disease_f1"] == 0.5
    assert fed["disease_f1"] == pytest.approx(2 / 3)
    assert fed["projection_rate"] == 0.75
    assert fed["false_positive_rate"] == 1.0
    assert [cen[name] for name in list(cen)[:4]] == [1.0, 1.0, 1.0, 0.0]
    (seed,) = fed["by_seed"]
    # Wilson, 3 of 4: 0.3006 … 0.9544; 0 of 1 keeps its width: 0 … 0.7935.
    assert seed["projection_rate"] == {
        "part": 3, "whole": 4, "share": 0.75,
        "low": pytest.approx(0.3006, abs=1e-4), "high": pytest.approx(0.9544, abs=1e-4),
    }  # fmt: skip
    none = cen["by_seed"][0]["false_positive_rate"]
    assert (none["part"], none["whole"], none["low"]) == (0, 1, 0.0)
    assert none["high"] == pytest.approx(0.7935, abs=1e-4)
    assert result["effect"]["effect"] == 0.5
    assert (result["effect"]["a"], result["effect"]["b"]) == ("central", "fedpref")
    assert (result["reports"], result["patients"]) == (4, 4)
    assert result["duplicates"]["groups"] == 0
    assert json.loads(json.dumps(result)) == result


def test_the_interval_pools_patients_without_sites() -> None:
    rng = np.random.default_rng(0)
    cases = [
        case(i, LEFT if i % 2 else RIGHT, site="xy"[i % 2], patient=f"p{i // 2}") for i in range(80)
    ]

    def random_policy(right: float) -> dict[str, EvaluationCounts]:
        wrong = [LEFT, RIGHT]
        return policy(
            cases,
            [
                c.annotation.structure if rng.random() < right else wrong[i % 2]
                for i, c in enumerate(cases)
            ],
        )

    fedpref = [random_policy(0.6) for _ in range(3)]
    central = [random_policy(0.8) for _ in range(3)]
    result = locked_result(cases, fedpref=fedpref, central=central, draws=700, seed=3)

    def array(runs: Any) -> Any:
        return [[(r[c.key].tp, r[c.key].fp, r[c.key].fn) for c in cases] for r in runs]

    assert result.effect == paired_cluster_bootstrap(
        array(central), array(fedpref), [0] * 80, [c.report.patient_id for c in cases],
        statistic="global", draws=700, seed=3,
    )  # fmt: skip
    assert result.effect.low is not None
    assert 0 < result.effect.low < 0.2 < result.effect.high  # type: ignore[operator]
    assert result.patients == 40
    mean = result.to_dict()["policies"]["central"]["location_disease_f1"]
    by_seed = [m.location_disease_f1 for m in result.measures["central"]]
    assert mean == pytest.approx(np.mean(by_seed))  # type: ignore[arg-type]


def test_equal_policies_and_one_patient_have_no_interval(cases: list[Case]) -> None:
    same = policy(cases, [LEFT, RIGHT, PNEUMONIA, EMPTY])
    effect = locked_result(cases, fedpref=[same], central=[same], draws=50).effect
    assert (effect.effect, effect.low) == (0.0, None)
    assert effect.degenerate is not None
    one = [case(i, LEFT, patient="p") for i in range(5)]
    effect = locked_result(
        one, fedpref=[policy(one, [None] * 5)], central=[policy(one, [LEFT] * 5)]
    ).effect
    assert (effect.effect, effect.low) == (1.0, None)
    assert effect.degenerate == "all reports are of one patient"
    empty = [case(i, EMPTY) for i in range(5)]
    nothing = policy(empty, [EMPTY] * 5)
    result = locked_result(empty, fedpref=[nothing], central=[nothing])
    assert result.effect.degenerate == "an arm has no positives on either side"
    assert result.measures["fedpref"][0].location_disease_f1 is None


def test_duplicate_texts_and_their_conflicts_are_counted() -> None:
    masked = Ignore(diseases={"pneumonia"})
    unsure_where = Ignore(locations_of={"atelectasis"})
    found = duplicates(
        [
            # One text, three times, twice left and once right: a conflict.
            case(1, LEFT, text="Left base atelectasis."),
            case(2, LEFT, text="LEFT base atelectasis", site="y"),
            case(3, RIGHT, text="left  base: atelectasis!"),
            # Equal annotations, and one that leaves open what the other decides: none.
            case(4, EMPTY, text="Normal chest."),
            case(5, EMPTY, text="normal chest"),
            case(6, PNEUMONIA, text="Opacity."),
            case(7, EMPTY, text="Opacity", ignore=masked),
            case(8, LEFT, text="Atelectasis."),
            case(9, RIGHT, text="Atelectasis", ignore=unsure_where),
            # A disease more: a conflict, though no finding differs.
            case(10, EMPTY, text="Haze."),
            case(11, PNEUMONIA, text="Haze"),
            case(12, LEFT, text="Once."),
        ]
    )
    assert found == Duplicates(groups=5, reports=11, conflicting_groups=2, conflicting_reports=5)


def test_the_hash_is_of_the_content_in_any_order(cases: list[Case]) -> None:
    whole = cases_digest(cases)
    assert len(whole) == 64
    assert cases_digest(cases[::-1]) == whole
    # Another partition, other ids: the same reports.
    renamed = [
        case(90 + i, c.annotation.structure, text=c.report.text.upper(), site="z", patient="q")
        for i, c in enumerate(cases)
    ]
    assert cases_digest(renamed) == whole
    assert cases_digest(cases[1:]) != whole
    assert cases_digest([*cases, cases[0]]) != whole
    for changed in (
        case(1, LEFT, text="Another."),
        case(1, RIGHT),
        case(1, LEFT, ignore=Ignore(diseases={"pneumonia"})),
    ):
        assert cases_digest([changed, *cases[1:]]) != whole
    # Which text has which annotation matters.
    swapped = [case(1, RIGHT), case(2, LEFT), *cases[2:]]
    assert cases_digest(swapped) != whole


def site_folder(path: Path, name: str, splits: list[str]) -> SiteDirectory:
    reports = [Report(f"r{i}", f"p{i}", s, f"Text {name} {i}") for i, s in enumerate(splits)]
    write_site(
        path / name, name=name, reports=reports,
        annotations=[Annotation(r.report_id, LEFT) for r in reports],
    )  # fmt: skip
    return SiteDirectory.load(path / name)


def test_cases_are_the_test_split_of_all_sites(tmp_path: Path) -> None:
    sites = [
        site_folder(tmp_path, "b", ["test", "train", "test"]),
        site_folder(tmp_path, "a", ["dev", "test"]),
        site_folder(tmp_path, "c", ["train"]),
    ]
    found = locked_test.held_out_cases(sites)
    assert [c.key for c in found] == ["a/r1", "b/r0", "b/r2"]
    assert "Text" not in repr(found)
    assert "r1" not in repr(found)
    with pytest.raises(ConfigError, match="test split of the 1 sites is empty"):
        locked_test.held_out_cases(sites[2:])
    with pytest.raises(ConfigError, match="test split of the 0 sites is empty"):
        locked_test.held_out_cases([])


def test_counts_of_other_reports_or_annotations_are_refused(cases: list[Case]) -> None:
    good = policy(cases, [LEFT, RIGHT, None, EMPTY])

    def refused(bad: dict[str, EvaluationCounts], *says: str) -> None:
        with pytest.raises(DataError) as caught:
            locked_result(cases, fedpref=[good], central=[bad])
        message = str(caught.value)
        assert all(part in message for part in says), message
        assert "r1" not in message
        assert "p1" not in message

    refused({k: v for k, v in good.items() if k != "x/r1"}, "central", "on 3 reports, 0 of them")
    other = {("z/r1" if k == "x/r1" else k): v for k, v in good.items()}
    refused(other, "on 4 reports, 1 of them none of the 4")
    # An edited file: a missed finding was turned into nothing.
    edited = good | {"x/r1": EvaluationCounts(reports=1, projected=1, strict=1)}
    refused(edited, "1 predictions of central", "[4, 1, 2, 1]", "[4, 2, 3, 1]")
    two = good | {"x/r1": good["x/r1"] + good["x/r1"]}
    refused(two, "[5, 3, 4, 1]", "[4, 2, 3, 1]")
    with pytest.raises(ConfigError, match="1 seeds of fedpref and 2 of central"):
        locked_result(cases, fedpref=[good], central=[good, good])
    with pytest.raises(ConfigError, match="0 seeds of fedpref and 0 of central"):
        locked_result(cases, fedpref=[], central=[])
