"""Files: nothing half-written stays, and a bad line is named."""

from pathlib import Path

import pytest

from fedpref.errors import DataError
from fedpref.files import atomic_dir, atomic_path, atomic_write, read_jsonl, write_jsonl


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    rows = [{"a": "é\u2028\n"}, {"b": 1}]
    write_jsonl(path, rows)
    assert list(read_jsonl(path)) == [(1, rows[0]), (2, rows[1])]


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b'{"a":1}\n{"a":', 2, "not valid JSON"),
        (b'\n\n["secret"]\n', 3, "list, not an object"),
        (b'{"a":"\xff"}\n', 1, "not UTF-8"),
        (b'{"a":{"b":1,"b":2}}', 1, "one key twice"),
        (b"[" * 100_000, 1, "not valid JSON"),
    ],
)
def test_a_bad_line_is_named_and_not_shown(
    tmp_path: Path, data: bytes, line: int, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        list(read_jsonl(path))
    assert caught.value.line == line
    assert "secret" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        list(read_jsonl(tmp_path / "none.jsonl"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    atomic_write(path, "old")
    with pytest.raises(RuntimeError), atomic_path(path) as part:
        part.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with atomic_dir(path) as part:
        (part / "a").write_text("1")
    with pytest.raises(RuntimeError), atomic_dir(path) as part:
        (part / "b").write_text("2")
        raise RuntimeError
    assert [p.name for p in path.iterdir()] == ["a"]
    with atomic_dir(path) as part:
        (part / "c").write_text("3")
    assert [p.name for p in path.iterdir()] == ["c"]
    assert list(tmp_path.iterdir()) == [path]
