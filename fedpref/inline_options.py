"""Keyword arguments written as one string, because a Flower run config holds no tables.

`eta = 2.0, similarity = 'factors'` is the inside of a TOML inline table.
"""

import math
import tomllib
from typing import Any

from fedpref.errors import ConfigError

Options = dict[str, Any]


def read_options(text: str, *, key: str) -> Options:
    """Return name → value (bool, int, float, str or a list of them) of TOML inline pairs.

    A name may be written with dashes, as the run config's own keys are; it is returned with
    underscores, as Python spells it. An empty text gives no options. Raises ConfigError naming
    `key`, the run config's key that holds the text.
    """
    try:
        tables = tomllib.loads(f"options = {{{text}}}")
    except ValueError as error:
        raise _malformed(key, str(error)) from None
    # What closes the table early could smuggle in keys of its own.
    if set(tables) != {"options"} or not isinstance(tables["options"], dict):
        raise _malformed(key, "it is more than pairs")
    options: Options = {}
    for written, value in tables["options"].items():
        name = written.replace("-", "_")
        if name in options:
            raise ConfigError(f"the option {written!r} is given twice", key=key)
        if not _plain(value):
            raise ConfigError(
                f"the option {written!r} has the value {value!r}",
                fix="use true, false, a finite number, a quoted text or a list of these",
                key=key,
            )
        options[name] = value
    return options


def _plain(value: object) -> bool:
    if isinstance(value, list):
        return all(_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int | str)


def _malformed(key: str, why: str) -> ConfigError:
    return ConfigError(
        "the options cannot be read",
        why=why,
        fix="write pairs such as: eta = 2.0, similarity = 'factors'",
        key=key,
    )
