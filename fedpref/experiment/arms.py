"""The arms of an experiment: FedPref, Local and Central, or strategies side by side.

`pair-fedavg,feddraw(eta = 2, similarity = factors)` names two strategies, one with options.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError, raise_all
from fedpref.federation.strategies import LOCAL, NAMED, make_strategy
from fedpref.federation.strategies.build import strategy_class
from fedpref.federation.strategies.catalogue import options_of
from fedpref.hashing import digest
from fedpref.inline_options import Options, read_options

FEDPREF: Final = "fedpref"
CENTRAL: Final = "central"
# The paper's three, in the order in which they run: Local takes over FedPref's roots.
MATCHED: Final = (FEDPREF, LOCAL, CENTRAL)

_KEY: Final = "strategies"
_ITEM: Final = re.compile(r"\s*([^\s(),]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS: Final = ("true", "false", "inf", "nan")  # values of TOML's own
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "\"'"


@dataclass(frozen=True)
class Arm:
    """One arm: its name in results, its strategy with options, or Central's union (`pooled`)."""

    name: str
    strategy: str
    options: str = ""
    pooled: bool = False

    @property
    def folder(self) -> str:
        """Return the name as a file system takes it, different for different names."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-._")
        return plain if plain == self.name else f"{plain[:60]}-{digest(self.name)[:6]}"

    def of(self, config: RunConfig) -> RunConfig:
        """Return the configuration with this arm's strategy."""
        return config.model_copy(
            update={"strategy": self.strategy, "strategy_options": self.options}
        )


def matched_arms(config: RunConfig) -> tuple[Arm, ...]:
    """Return FedPref with the configured strategy, Local and Central (DESIGN 1.7).

    Raises ConfigError if the strategy is Local's.
    """
    if config.strategy == LOCAL:
        raise ConfigError(
            "the strategy of a comparison is that of its federated arm",
            fix=f"choose another strategy than {LOCAL!r}; the arm Local is always run",
            key="strategy",
        )
    return (
        Arm(FEDPREF, config.strategy, config.strategy_options),
        Arm(LOCAL, LOCAL),
        Arm(CENTRAL, "pair-fedavg", pooled=True),
    )


def strategy_arms(text: str, config: RunConfig) -> tuple[Arm, ...]:
    """Return one arm a strategy of a list such as "uniform,feddraw(eta=2,similarity=factors)".

    Raises ConfigError, or FedPrefErrors with every problem of every entry: one that cannot be read,
    an unknown strategy or option, a strategy with the same options twice, fewer than two.
    """
    problems: list[FedPrefError] = []
    arms: list[Arm] = []
    seen: dict[str, str] = {}
    for item in _split(text):
        try:
            arm = _arm(item)
            make_strategy(arm.of(config))
        except FedPrefError as error:
            problems += _of_entry(item.strip(), error)
            continue
        identity = _identity(arm)
        if identity in seen:
            problems.append(
                ConfigError(
                    f"{seen[identity]} and {arm.name} are one and the same strategy",
                    why="an option that is not given has its default",
                    fix="leave one out or give it other options",
                    key=_KEY,
                )
            )
            continue
        seen[identity] = arm.name
        arms.append(arm)
    if not problems and len(arms) < 2:
        problems.append(
            ConfigError(
                f"{len(arms)} strategies were named",
                fix="name two or more, separated by commas; `fedpref strategies` lists them",
                key=_KEY,
            )
        )
    raise_all(problems)
    return tuple(arms)


def leaves_training(arm: Arm) -> bool | None:
    """Return whether the sites of an arm train as usual; None for a strategy of somebody else's."""
    named = NAMED.get(arm.strategy)
    return None if named is None else not named.alters_training


def _split(text: str) -> list[str]:
    """Return the parts of a list at its outer commas; brackets and quotes hold theirs together."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if char == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += char
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPEN or char in _CLOSE:
            depth += 1 if char in _OPEN else -1
    return [part for part in parts if part.strip()]


def _arm(item: str) -> Arm:
    found = _ITEM.fullmatch(item)
    if found is None:
        raise ConfigError(
            "the entry cannot be read",
            fix="write name or name(option=value,…), such as feddraw(eta=2,similarity=factors)",
        )
    name, inside = found[1], found[2] or ""
    options = ", ".join(_option(part) for part in _split(inside))
    shown = ",".join(f"{key}={_short(value)}" for key, value in _read(options).items())
    return Arm(f"{name}({shown})" if shown else name, name, options)


def _option(text: str) -> str:
    """Return one `key = value` as TOML; a bare word is a text, so that a shell needs no quotes."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if equals and _BARE.fullmatch(value) and value not in _WORDS:
        value = f'"{value}"'
    return f"{key} {equals} {value}".strip()


def _read(options: str) -> Options:
    return read_options(options, key="strategy-options")


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_short, value))}]"
    return str(value)


def _identity(arm: Arm) -> str:
    """Return what two spellings of one strategy have in common: its class, all options filled."""
    known = strategy_class(arm.strategy)
    given = _read(arm.options)
    filled = {o.name: o.default for o in options_of(known) if not o.required} | given
    same = {key: float(v) if type(v) is int else v for key, v in filled.items()}
    # Local and pair-fedavg share a class and are two strategies.
    return repr((arm.strategy == LOCAL, known, sorted(same.items(), key=lambda kv: kv[0])))


def _of_entry(item: str, error: FedPrefError) -> Iterator[FedPrefError]:
    """Return the problems of one entry, each naming it."""
    for one in getattr(error, "errors", (error,)):
        yield ConfigError(f"{item}: {one.what}", why=one.why, fix=one.fix, key=_KEY)
