"""Candidates: resumable, atomic, fresh or refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from fedpref.data import SiteDirectory
from fedpref.errors import DataError
from fedpref.files import read_jsonl, write_jsonl
from fedpref.preference import generate, read_candidates
from fedpref.preference.candidates import candidates_path, current_candidates


@dataclass
class Scripted:
    """A teacher that answers by its version, counts its texts, and may fail at one of them."""

    name: str = "scripted"
    version: int = 1
    fails_at: str | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return f"version {self.version}"

    def extract(self, texts: Sequence[str]) -> list[str]:
        for text in texts:
            if self.fails_at is not None and self.fails_at in text:
                raise DataError("the teacher 'scripted' failed")
        self.asked.extend(texts)
        return [f"{self.version}: {len(text)}" for text in texts]


def edit_report(site: SiteDirectory, report_id: str, text: str) -> SiteDirectory:
    path = site.path / "reports.jsonl"
    rows = [row for _, row in read_jsonl(path)]
    write_jsonl(
        path, [row | {"text": text} if row["report_id"] == report_id else row for row in rows]
    )
    return SiteDirectory.load(site.path)


def test_train_and_dev_reports_are_asked_in_order(site: SiteDirectory) -> None:
    teacher, seen = Scripted(), []
    done = generate(site, teacher, progress=seen.append)
    assert (done.total, done.reused) == (4, 0)
    assert sum(seen) == 4
    candidates = read_candidates(candidates_path(site, "scripted"))
    assert [candidate.report_id for candidate in candidates] == ["r1", "r2", "r3", "r5"]
    assert teacher.asked == [report.text for report in site.reports if report.split != "test"]


def test_a_second_run_asks_nothing_and_changes_nothing(site: SiteDirectory) -> None:
    generate(site, Scripted())
    path = candidates_path(site, "scripted")
    before = path.stat()
    teacher = Scripted()
    assert generate(site, teacher).reused == 4
    assert teacher.asked == []
    assert path.stat().st_ino == before.st_ino


def test_only_a_changed_text_is_asked_again(site: SiteDirectory) -> None:
    generate(site, Scripted())
    site = edit_report(site, "r2", "Another text.")
    with pytest.raises(DataError, match="1 candidates were made from another text"):
        current_candidates(site, "scripted")
    teacher = Scripted()
    assert generate(site, teacher).reused == 3
    assert teacher.asked == ["Another text."]
    assert current_candidates(site, "scripted")["r2"].text == "1: 13"


def test_another_state_of_the_teacher_asks_all_again(site: SiteDirectory) -> None:
    generate(site, Scripted(version=1))
    with pytest.raises(DataError, match="another state of the teacher"):
        current_candidates(site, "scripted", teacher_hash="version 2")
    assert generate(site, Scripted(version=2)).reused == 0
    assert current_candidates(site, "scripted", teacher_hash="version 2")


def test_what_was_answered_before_a_failure_is_kept(
    site: SiteDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpref.preference.candidates._BATCH", 1)
    with pytest.raises(DataError, match="site site-a: the teacher 'scripted' failed"):
        generate(site, Scripted(fails_at="upper lobe"))
    path = candidates_path(site, "scripted")
    assert [candidate.report_id for candidate in read_candidates(path)] == ["r1", "r2"]
    assert [entry.name for entry in path.parent.iterdir()] == ["scripted.jsonl"]
    with pytest.raises(DataError, match="2 of 4 reports have no candidate"):
        current_candidates(site, "scripted")
    teacher = Scripted()
    assert generate(site, teacher).reused == 2
    assert len(teacher.asked) == 2


def test_a_missing_teacher_is_named_with_site_file_and_what_to_do(site: SiteDirectory) -> None:
    with pytest.raises(DataError) as caught:
        current_candidates(site, "qwen")
    message = str(caught.value)
    for part in ("'qwen'", "site site-a", "candidates/qwen.jsonl", f"`fedpref teach {site.path}`"):
        assert part in message


@pytest.mark.parametrize(
    "row",
    [
        {"report_id": "r1", "teacher": "scripted", "text": "x", "report_hash": "h"},
        {
            "report_id": "r1",
            "teacher": "scripted",
            "text": 1,
            "report_hash": "h",
            "teacher_hash": "",
        },
    ],
)
def test_a_malformed_line_is_named(
    row: dict[str, object], make_site: Callable[..., SiteDirectory]
) -> None:
    path = candidates_path(make_site(), "scripted")
    write_jsonl(path, [row])
    with pytest.raises(DataError, match=r"scripted.jsonl:1: a candidate has the keys"):
        read_candidates(path)


def test_a_repeated_report_is_refused(site: SiteDirectory) -> None:
    generate(site, Scripted())
    path = candidates_path(site, "scripted")
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines, lines[0]]), "utf-8")
    with pytest.raises(DataError, match=r":5: the report has two candidates"):
        read_candidates(path)


def test_a_candidate_does_not_print_its_text(site: SiteDirectory) -> None:
    generate(site, Scripted())
    shown = repr(current_candidates(site, "scripted")["r1"])
    assert "r1" not in shown
    assert "1: " not in shown
