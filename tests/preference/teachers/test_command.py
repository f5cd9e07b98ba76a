"""A site's own labeller as a teacher."""

import shlex
import sys
import threading
from pathlib import Path

import pytest

from fedpref.errors import ConfigError, DataError
from fedpref.preference.teachers import make_teachers
from fedpref.preference.teachers.command import CommandTeacher, command_teacher

SECRET = "Left effusion of Mr. Invented."


def script(folder: Path, body: str, name: str = "labeller.py") -> str:
    path = folder / name
    path.write_text(f"import json, os, sys, time\ntext = sys.stdin.buffer.read()\n{body}\n")
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))}"


def test_each_report_goes_in_and_the_answer_comes_out_in_order(tmp_path: Path) -> None:
    line = script(tmp_path, "print(json.dumps({'n': len(text.decode())}), end='')")
    teacher = command_teacher(f"own={line}", workers=3)
    assert teacher.name == "own"
    assert teacher.extract(["a", "äö", "", "four"]) == [
        '{"n": 1}',
        '{"n": 2}',
        '{"n": 0}',
        '{"n": 4}',
    ]


def test_an_exit_status_is_named_and_nothing_that_was_printed(tmp_path: Path) -> None:
    line = script(tmp_path, "print(text); print(text, file=sys.stderr); sys.exit(3)")
    with pytest.raises(DataError, match=r"'own' ended with exit status 3") as caught:
        command_teacher(f"own={line}").extract([SECRET])
    assert "Invented" not in str(caught.value)


def test_a_slow_command_is_ended_with_all_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "still-here"
    child = f"time.sleep(1.5); open({str(marker)!r}, 'w')"
    body = f"import subprocess\nsubprocess.run([sys.executable, '-c', \"import time; {child}\"])"
    with pytest.raises(DataError, match=r"no answer within 0.5 s"):
        command_teacher(f"own={script(tmp_path, body)}", timeout=0.5).extract([SECRET])
    threading.Event().wait(1.8)
    assert not marker.exists()


def test_after_a_failure_the_waiting_reports_do_not_start(tmp_path: Path) -> None:
    body = f"open(os.path.join({str(tmp_path)!r}, 'run-' + text.decode()), 'w'); sys.exit(1)"
    teacher = command_teacher(f"own={script(tmp_path, body)}", workers=1)
    with pytest.raises(DataError):
        teacher.extract([str(i) for i in range(20)])
    assert 1 <= len(list(tmp_path.glob("run-*"))) <= 3


def test_output_that_is_no_utf8_and_input_without_reader_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "bytes.py"
    path.write_text("import sys; sys.stdout.buffer.write(b'\\xff{')")
    line = f"{sys.executable} {path}"
    assert command_teacher(f"own={line}").extract(["x" * 1_000_000]) == ["\ufffd{"]


def test_a_text_with_a_lone_surrogate_can_be_sent(tmp_path: Path) -> None:
    assert command_teacher(f"own={script(tmp_path, 'print(1)')}").extract(["\ud800"]) == ["1\n"]


def test_the_digest_follows_the_files_that_the_command_names(tmp_path: Path) -> None:
    line = script(tmp_path, "print(1)")
    before = command_teacher(line).digest
    assert command_teacher(line).digest == before
    script(tmp_path, "print(2)")
    assert command_teacher(line).digest != before


@pytest.mark.parametrize("line", ["'open", "/no/such/program --json", "  "])
def test_a_command_that_cannot_run_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        command_teacher(line)


def test_specifications() -> None:
    names = [teacher.name for teacher in make_teachers("rules")]
    assert names == ["careful", "coarse", "literal", "eager"]
    assert [t.name for t in make_teachers("rules:eager, rules:careful")] == ["eager", "careful"]
    mixed = make_teachers(f"command:own={sys.executable} -c 'a,b',rules:literal")
    assert [teacher.name for teacher in mixed] == ["own", "literal"]
    assert isinstance(mixed[0], CommandTeacher)
    assert mixed[0].argv[1:] == ("-c", "a,b")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "is no teacher"),
        ("rulez", "is no teacher"),
        ("command:", "is no teacher"),
        ("rules:none", "no rule teacher 'none'"),
        ("rules,rules:careful", "two teachers are called 'careful'"),
    ],
)
def test_bad_specifications_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_teachers(spec)
