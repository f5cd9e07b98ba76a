"""The last line of defence at a site: only coded messages leave it.

Flower sends the text of an exception that a ClientApp raises to the coordinator, and an exception
can quote what it failed on: a report. Here every failure becomes a normal reply with a coded
message; of an error that FedPref did not raise itself, the type's name is all that leaves.
"""

import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict

from fedpref.errors import DataError, FedPrefError, FedPrefErrors
from fedpref.federation import wire

_LOGGER = logging.getLogger("flwr")
_MOST_PROBLEMS = 20
# The folders of an absolute path: "run `fedpref pairs /srv/mercy/site`" becomes "… pairs site`".
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/`'\"]+/)+")


def coded_errors_only(
    message: Message, site: str, answer: Callable[[], Message], *, partitions: int = 0
) -> Message:
    """Return `answer()`, or a reply with status `error` and the coded message of what it raised.

    `site` names the site in that reply, and `partitions` says how many SuperNodes there are, so
    that the coordinator need not wait for a deadline to learn that none of them can start. The
    local log gets the same message, and for an unexpected error the places in the code, without
    any value.
    """
    try:
        return answer()
    except FedPrefError as error:
        text = travelling(error)
        first = error.errors[0] if isinstance(error, FedPrefErrors) else error
        site = first.site or site
    except ImportError as error:
        text = (
            f"[FP000] the site lacks the Python package {error.name or '(unnamed)'}. "
            "Install fedpref[site] there."
        )
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
        _LOGGER.error("site %s: %s at %s", site, type(error).__name__, where)
        text = (
            f"[FP000] the site failed with {type(error).__name__}. "
            "The log of its own SuperNode says where."
        )
    _LOGGER.error("site %s: %s", site, text)
    record = ConfigRecord(
        {
            wire.STATUS: wire.FAILED,
            wire.SITE: site,
            wire.PARTITIONS: partitions,
            wire.ERROR: text,
        }
    )
    return Message(RecordDict({wire.CONFIG: record}), reply_to=message)


def travelling(error: FedPrefError) -> str:
    """Return the error's message without the site's folders and without what it quotes.

    Of a file, the name and the line are told. A data error can quote a row and is cut there.
    """
    if isinstance(error, FedPrefErrors):
        lines = [travelling(part) for part in error.errors[:_MOST_PROBLEMS]]
        if len(error.errors) > _MOST_PROBLEMS:
            lines.append(f"… and {len(error.errors) - _MOST_PROBLEMS} more")
        return "\n".join(lines)
    what, fix = error.what, error.fix
    if isinstance(error, DataError):
        # What is wrong with a row can quote it, such as an unknown name: the rest stays here.
        what = re.split(r"[:'\"`(]", error.what, maxsplit=1)[0].strip() or "a data problem"
        if what != error.what.strip():
            fix = f"{fix}. `fedpref site check` there tells more".removeprefix(". ")
    told = FedPrefError(
        what,
        why=error.why,
        fix=fix,
        file=None if error.file is None else Path(str(error.file)).name,
        line=error.line,
        key=error.key,
    )
    text = told.message().replace(FedPrefError.code, error.code, 1)
    return _FOLDERS.sub("", text)
