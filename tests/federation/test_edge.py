"""Nothing but coded messages leaves a site, and they quote no data."""

import logging
from collections.abc import Callable

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpref.errors import DataError, FedPrefErrors, ModelError
from fedpref.federation import wire
from fedpref.federation.edge import coded_errors_only, travelling
from fedpref.federation.guards import site_error

SECRET = "Mild cardiomegaly, patient Doe"


@pytest.fixture
def message() -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(RecordDict({"config": ConfigRecord()}), dst_node_id=7, message_type="train")


def reply_to(message: Message, fail: Callable[[], Message]) -> str:
    reply = coded_errors_only(message, "site-a", fail)
    config = reply.content[wire.CONFIG]
    assert set(reply.content) == {wire.CONFIG}
    assert set(config) == {wire.STATUS, wire.SITE, wire.PARTITIONS, wire.ERROR}
    assert (config[wire.STATUS], config[wire.SITE]) == (wire.FAILED, "site-a")
    return str(config[wire.ERROR])


def raising(error: Exception) -> Callable[[], Message]:
    def fail() -> Message:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [ValueError(SECRET), KeyError(SECRET), RuntimeError(SECRET), UnicodeError(SECRET)]
)
def test_of_an_unexpected_error_only_the_type_leaves(
    message: Message, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    text = reply_to(message, raising(error))
    assert text.startswith(f"[FP000] the site failed with {type(error).__name__}")
    assert SECRET not in text
    # The site's own log says where, without the value.
    assert SECRET not in caplog.text
    assert "test_edge.py" in caplog.text


def test_a_missing_package_is_named(message: Message) -> None:
    text = reply_to(message, raising(ModuleNotFoundError(SECRET, name="torch")))
    assert text == "[FP000] the site lacks the Python package torch. Install fedpref[site] there."


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            DataError("no pairs yet", file="/srv/x/pairs.jsonl", site="a", fix="run it"),
            "[FP200] pairs.jsonl: no pairs yet. run it.",
        ),
        (
            DataError(f"unknown disease: {SECRET!r}", file="/srv/x/a.jsonl", line=3),
            "[FP200] a.jsonl:3: unknown disease. `fedpref site check` there tells more.",
        ),
        (
            DataError(f"split {SECRET!r} is none of train", file="r.jsonl", line=3, fix="mend it"),
            "[FP200] r.jsonl:3: split. mend it. `fedpref site check` there tells more.",
        ),
        (
            ModelError("no such folder", why="it's absent", file="/models/x", key="model.path"),
            "[FP300] x, key model.path: no such folder. it's absent.",
        ),
    ],
)
def test_a_coded_error_travels_without_folders_and_quotes(error: DataError, text: str) -> None:
    assert travelling(error) == text


def test_the_site_of_an_error_names_the_reply(message: Message) -> None:
    reply = coded_errors_only(message, "partition-1", raising(DataError("bad", site="mercy")))
    assert reply.content[wire.CONFIG][wire.SITE] == "mercy"


def test_a_command_to_run_names_no_folder() -> None:
    error = DataError("no pairs yet", fix="run `fedpref pairs /srv/mercy/site-a`")
    assert travelling(error) == "[FP200] no pairs yet. run `fedpref pairs site-a`."


def test_many_problems_are_cut_to_twenty() -> None:
    errors = FedPrefErrors([DataError("bad", file="r.jsonl", line=i) for i in range(30)])
    lines = travelling(errors).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "… and 10 more"


def test_the_coordinator_takes_only_coded_messages_of_bounded_length(message: Message) -> None:
    def reply(text: str) -> Message:
        record = ConfigRecord({wire.STATUS: wire.FAILED, wire.ERROR: text})
        return Message(RecordDict({wire.CONFIG: record}), reply_to=message)

    assert site_error(reply("[FP200] a\x1b[31m\nb")) == "[FP200] a[31m\nb"
    assert len(site_error(reply("[FP200] " + "x" * 9000))) == 2000
    assert site_error(reply(SECRET)) == "the site failed without a coded message"
