"""The coordinator's log: one marked line an event, which `fedpref run` shows as progress."""

import logging

LOG_MARK = "fedpref · "

# Flower configures this logger in every process that it starts.
_LOGGER = logging.getLogger("flwr")


def say(text: str, *, warn: bool = False) -> None:
    """Log `text`, each line of it marked; a warning is something that a site should look at."""
    for line in text.splitlines():
        _LOGGER.log(logging.WARNING if warn else logging.INFO, "%s%s", LOG_MARK, line)
