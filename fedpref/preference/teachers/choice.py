"""From what a user writes to teachers: `rules`, `rules:careful,rules:literal`, `command:…`."""

import re
from collections import Counter

from fedpref.errors import ConfigError
from fedpref.preference.teachers.base import Teacher
from fedpref.preference.teachers.command import TIMEOUT, WORKERS, command_teacher
from fedpref.preference.teachers.rules import HABITS, rule_teacher

# A comma parts two teachers only if another kind follows: a command may hold commas itself.
_COMMA = re.compile(r",(?=\s*(?:rules|command)\b)")


def make_teachers(
    spec: str, *, timeout: float = TIMEOUT, workers: int = WORKERS
) -> tuple[Teacher, ...]:
    """Return the teachers of a specification, in its order, which breaks ties between them.

    Parts are separated by commas: `rules` (all four), `rules:NAME`, `command:LINE` or
    `command:NAME=LINE`. `timeout` (seconds per report) and `workers` hold for commands.
    Raises ConfigError for an unknown kind or name, or two teachers of one name.
    """
    teachers: list[Teacher] = []
    for part in _COMMA.split(spec):
        kind, _, rest = part.strip().partition(":")
        if kind == "rules":
            names = (rest.strip(),) if rest else tuple(HABITS)
            teachers.extend(rule_teacher(name) for name in names)
        elif kind == "command" and rest.strip():
            teachers.append(command_teacher(rest, timeout=timeout, workers=workers))
        else:
            raise ConfigError(
                f"{part.strip()!r} is no teacher",
                fix="write rules, rules:NAME or command:LINE, separated by commas",
            )
    repeated = [name for name, count in Counter(t.name for t in teachers).items() if count > 1]
    if repeated:
        raise ConfigError(
            f"two teachers are called {repeated[0]!r}",
            why="their candidates would share a file",
            fix="name each once; a command gets a name by command:NAME=LINE",
        )
    return tuple(teachers)
