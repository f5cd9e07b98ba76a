"""pairs.jsonl: built, read back, and refused once it no longer belongs to its site."""

import json
from collections.abc import Callable

import pytest

from fedpref.data import SiteDirectory
from fedpref.errors import DataError, FedPrefErrors
from fedpref.files import read_jsonl, write_jsonl
from fedpref.hashing import digest
from fedpref.preference import (
    build_pairs,
    generate,
    make_teachers,
    pairs_digest,
    read_pairs,
)
from fedpref.task import Ontology, Structure

NAMES = ["careful", "coarse", "literal", "eager"]


@pytest.fixture
def taught(site: SiteDirectory) -> SiteDirectory:
    for teacher in make_teachers("rules"):
        generate(site, teacher)
    return site


def rewrite(site: SiteDirectory, file: str, **changes: object) -> SiteDirectory:
    """Change keys of a file's first row and load the site again."""
    path = site.path / file
    rows = [row for _, row in read_jsonl(path)]
    write_jsonl(path, [rows[0] | changes, *rows[1:]])
    return SiteDirectory.load(site.path)


def test_pairs_of_the_invented_site(taught: SiteDirectory) -> None:
    built = build_pairs(taught, NAMES)
    assert read_pairs(taught) == list(built.pairs)
    by_report = {pair.report_id: pair for pair in built.pairs}
    # r4 is a test report; in r5 both ends say lung opacity, which its annotation leaves open.
    assert list(by_report) == ["r1", "r2", "r3"]
    # r1: careful is right (three findings). Eager gives both places to both diseases, with the
    # parents eight findings: tp 3, fp 5, loc+dis F1 6/11. Coarse and literal have 4/5.
    r1 = by_report["r1"]
    assert (r1.chosen_teacher, r1.rejected_teacher) == ("careful", "eager")
    assert r1.margin == pytest.approx(0.70 * (1 - 6 / 11))
    assert Structure.from_json(r1.chosen) == taught.annotations["r1"].structure
    assert r1.pair_id == digest([digest(taught.reports[0].text), r1.chosen, r1.rejected])
    # r2: no finding. Eager's denial does not reach the end of the list.
    assert by_report["r2"].chosen == '{"diseases":[],"findings":[]}'
    assert by_report["r2"].rejected_teacher == "eager"
    assert by_report["r3"].home_site == "elsewhere"
    assert [pair.split for pair in built.pairs] == ["train", "train", "dev"]
    assert [pair.report_id for pair in read_pairs(taught, split="dev")] == ["r3"]


def test_the_audit_counts_outputs_and_parts_in_pairs(taught: SiteDirectory) -> None:
    audit = build_pairs(taught, NAMES).audit
    rows = {(row.teacher, row.split): row for row in audit.teachers}
    assert [row.teacher for row in audit.teachers] == NAMES * 2
    train = rows["careful", "train"]
    assert (train.outputs, train.strict, train.eligible, train.discarded) == (3, 3, 3, 0)
    assert (train.chosen, train.rejected) == (2, 0)
    assert rows["coarse", "train"].strict == 0
    assert rows["eager", "train"].rejected == 2
    assert [(split.split, split.reports, split.pairs) for split in audit.splits] == [
        ("train", 3, 2),
        ("dev", 1, 1),
    ]


def test_building_twice_gives_the_same_bytes(taught: SiteDirectory) -> None:
    build_pairs(taught, NAMES)
    first = taught.pairs_path.read_bytes()
    build_pairs(taught, NAMES)
    assert taught.pairs_path.read_bytes() == first


def test_the_order_of_teachers_breaks_ties(taught: SiteDirectory) -> None:
    # In r3 careful and eager read the zone, coarse and literal only the lung.
    def ends(order: list[str]) -> tuple[str, str]:
        pair = next(p for p in build_pairs(taught, order).pairs if p.report_id == "r3")
        return pair.chosen_teacher, pair.rejected_teacher

    assert ends(NAMES) == ("careful", "coarse")
    assert ends(NAMES[::-1]) == ("eager", "literal")


def test_a_site_without_pairs_reads_as_none(taught: SiteDirectory) -> None:
    assert build_pairs(taught, ["careful"]).pairs == ()
    assert read_pairs(taught) == []


def test_pairs_that_were_never_built_are_asked_for(site: SiteDirectory) -> None:
    with pytest.raises(
        DataError, match=r"site-a, .*pairs.jsonl: the site has no pairs yet.*fedpref pairs"
    ):
        read_pairs(site)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("reports.jsonl", {"text": "Other text."}, "reports"),
        ("reports.jsonl", {"split": "dev"}, "reports"),
        ("annotations.jsonl", {"diseases": [], "findings": []}, "annotations"),
        ("annotations.jsonl", {"ignore": {"diseases": ["pneumonia"]}}, "annotations"),
        ("candidates/careful.jsonl", {"text": "{}"}, "candidates of 'careful'"),
    ],
)
def test_stale_pairs_are_refused(
    taught: SiteDirectory, file: str, changes: dict[str, object], named: str
) -> None:
    build_pairs(taught, NAMES)
    changed = rewrite(taught, file, **changes)
    with pytest.raises(DataError, match=named) as caught:
        read_pairs(changed)
    assert f"`fedpref pairs {taught.path}`" in str(caught.value)


def test_another_ontology_makes_pairs_stale(taught: SiteDirectory) -> None:
    build_pairs(taught, NAMES)
    other = Ontology("other", (*taught.ontology.diseases, "fracture"), taught.ontology.locations)
    with pytest.raises(DataError, match="ontology"):
        read_pairs(taught, ontology=other)


def test_what_forms_no_pairs_may_change(taught: SiteDirectory) -> None:
    built = build_pairs(taught, NAMES)
    path = taught.path / "reports.jsonl"
    rows = [row for _, row in read_jsonl(path)]
    write_jsonl(
        path, [row | {"text": "Changed."} if row["split"] == "test" else row for row in rows]
    )
    for file in taught.candidates_dir.iterdir():
        file.unlink()
    assert read_pairs(SiteDirectory.load(taught.path)) == list(built.pairs)


def test_damaged_pairs_are_refused(taught: SiteDirectory) -> None:
    build_pairs(taught, NAMES)
    lines = taught.pairs_path.read_text("utf-8").splitlines()
    swapped = json.loads(lines[1])
    swapped["chosen"], swapped["rejected"] = swapped["rejected"], swapped["chosen"]
    for damaged, message in (
        (lines[:-1], "pairs differ"),
        (lines[1:], "first line"),
        ([lines[0], json.dumps(swapped), *lines[2:]], "pairs differ"),
        ([lines[0], '{"report_id":"r1"}'], r"pairs.jsonl:2: a pair has the keys"),
        ([*lines[:-1], lines[-1][:20]], r"not valid JSON"),
    ):
        taught.pairs_path.write_text("\n".join(damaged), "utf-8")
        with pytest.raises(DataError, match=message):
            read_pairs(taught)


def test_missing_candidates_stop_before_anything_is_written(taught: SiteDirectory) -> None:
    with pytest.raises(DataError, match="'absent' has no candidates"):
        build_pairs(taught, [*NAMES, "absent"])
    assert not taught.pairs_path.exists()


def test_over_long_pairs_are_all_named_or_all_dropped(taught: SiteDirectory) -> None:
    def length_of(text: str, chosen: str, rejected: str) -> int:
        return len(text) + max(len(chosen), len(rejected))

    lengths = [
        length_of(
            next(r.text for r in taught.reports if r.report_id == p.report_id), p.chosen, p.rejected
        )
        for p in build_pairs(taught, NAMES).pairs
    ]
    limit = sorted(lengths)[0]
    kept = taught.pairs_path.read_bytes()
    with pytest.raises(FedPrefErrors) as caught:
        build_pairs(taught, NAMES, length_of=length_of, max_length=limit)
    assert len(caught.value.errors) == 2
    assert "'r1' needs" in str(caught.value)
    assert taught.pairs_path.read_bytes() == kept
    built = build_pairs(taught, NAMES, length_of=length_of, max_length=limit, on_too_long="drop")
    assert (len(built.pairs), built.too_long) == (1, 2)
    assert sum(split.pairs for split in built.audit.splits) == 1
    assert read_pairs(taught) == list(built.pairs)


def test_reports_that_cannot_be_encoded_are_named_all_at_once(taught: SiteDirectory) -> None:
    def length_of(text: str, chosen: str, rejected: str) -> int:
        raise DataError("a report holds <|im_end|> in line 2 of its text")

    with pytest.raises(FedPrefErrors) as caught:
        build_pairs(taught, NAMES, length_of=length_of, max_length=9, on_too_long="drop")
    assert len(caught.value.errors) == 3
    assert caught.value.errors[0].what.startswith("report 'r1': a report holds <|im_end|>")
    assert caught.value.errors[0].site == taught.name
    assert not taught.pairs_path.exists()


def test_the_digest_depends_on_ids_and_order(taught: SiteDirectory) -> None:
    pairs = list(build_pairs(taught, NAMES).pairs)
    assert pairs_digest(pairs) == pairs_digest(list(pairs))
    assert pairs_digest(pairs) != pairs_digest(pairs[::-1])
    assert pairs_digest(pairs) != pairs_digest(pairs[:-1])


def test_a_pair_does_not_print_what_it_holds(
    make_site: Callable[..., SiteDirectory], taught: SiteDirectory
) -> None:
    shown = repr(build_pairs(taught, NAMES).pairs[0])
    assert "effusion" not in shown
    assert "r1" not in shown
