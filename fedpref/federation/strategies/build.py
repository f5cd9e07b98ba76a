"""From the run config's `strategy` and `strategy-options` to a strategy that is ready for a run.

A name stands in the catalogue; a dotted path, `package.module:Class` or `package.module.Class`,
names any Flower `Strategy` that the coordinator can import. Sites import none of this.
"""

import difflib
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from flwr.serverapp.strategy import FedAvg, Strategy
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError, raise_all
from fedpref.federation.handshake import Agreement
from fedpref.federation.participation import sample_size
from fedpref.federation.strategies.at_work import at_work
from fedpref.federation.strategies.base import RunFacts
from fedpref.federation.strategies.catalogue import (
    NAMED,
    Option,
    options_of,
    takes_anything,
)
from fedpref.federation.strategies.flower import EVERYONE
from fedpref.inline_options import Options, read_options

_NAME, _OPTIONS = "strategy", "strategy-options"


def make_strategy(config: RunConfig) -> Strategy:
    """Return the run's strategy as configured; nothing needs to be known of the sites.

    Raises ConfigError, or FedPrefErrors with all problems of the options.
    """
    strategy = strategy_class(config.strategy)
    options = read_options(config.strategy_options, key=_OPTIONS)
    made = _construct(config.strategy, strategy, _checked(config.strategy, strategy, options))
    _check_lowest(config, made)
    if isinstance(made, FedAvg):
        # Flower's would wait for two nodes at least, and draw from an unseeded generator.
        for name, value in EVERYONE.items():
            setattr(made, name, value)
    return made


def ready_strategy(config: RunConfig, agreement: Agreement) -> Strategy:
    """Return the strategy of `make_strategy`, told of the run; before its first round.

    Raises ConfigError if it needs more updates a round than the sites can give.
    """
    strategy = make_strategy(config)
    with_pairs = sum(pairs > 0 for pairs in agreement.sites.values())
    check_enough_sites(config, strategy, sites=len(agreement.sites), with_pairs=with_pairs)
    prepare = getattr(strategy, "prepare", None)
    if callable(prepare):
        with at_work(config.strategy, ConfigError):
            prepare(RunFacts(tuple(agreement.sites), config.rounds, agreement.spec))
    return strategy


def check_enough_sites(
    config: RunConfig, strategy: Strategy, *, sites: int, with_pairs: int
) -> None:
    """Raise ConfigError unless every round that may close has the updates the strategy needs.

    A round closes when `quorum` of the asked sites answered well, or all of them without a quorum;
    those without pairs answer, but send no update.
    """
    asked = sample_size(sites, fraction=config.fraction, at_least=config.quorum)
    answers, without = config.quorum or asked, sites - with_pairs
    needed = sites_needed(strategy, config.strategy)
    if needed > max(answers - without, 1):
        quorum = needed + without
        raise ConfigError(
            f"{config.strategy} needs the updates of {needed} sites in a round, "
            f"{max(answers - without, 0)} are sure to come",
            why=f"of {sites} sites, {with_pairs} have pairs, {asked} are asked in a round, and "
            f"{answers} must answer",
            fix=f"set quorum to {quorum} or more"
            if quorum <= sites
            else "use more sites, other strategy-options or another strategy",
            key="quorum" if quorum <= sites else _NAME,
        )


def _check_lowest(config: RunConfig, strategy: Strategy) -> None:
    """Raise ConfigError if a run could begin, or a round close, with too few for the strategy."""
    needed = sites_needed(strategy, config.strategy)
    raise_all(
        [
            ConfigError(
                f"{key} = {value} is too low for {config.strategy}",
                why=f"it needs the updates of {needed} sites in a round",
                fix=f"set {key} to {needed} or more, or to 0: then all sites must {what}",
                key=key,
            )
            for key, value, what in (
                ("min-sites", config.min_sites, "join"),
                ("quorum", config.quorum, "answer that are asked"),
            )
            if 0 < value < needed
        ]
    )


def sites_needed(strategy: Strategy, name: str) -> int:
    """Return the fewest updates of a round that the strategy `name` can combine, at least 1.

    Raises ConfigError if it gives no whole number.
    """
    with at_work(name, ConfigError):
        needed = getattr(strategy, "sites_needed", 1)
        if not isinstance(needed, int):
            raise TypeError(f"sites_needed is {needed!r}, which is no whole number")
    return max(1, needed)


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of a name or dotted path; raises ConfigError."""
    if name in NAMED:
        return NAMED[name].strategy
    module, class_name = _parts(name)
    if not module or not class_name:
        raise ConfigError(
            f"there is no strategy {name!r}",
            fix=_nearest(name, NAMED)
            or "`fedpref strategies` lists them; a class of your own is package.module:Class",
            key=_NAME,
        )
    return _imported(name, module, class_name)


def _parts(name: str) -> tuple[str, str]:
    module, colon, class_name = name.partition(":")
    if not colon:
        module, _, class_name = name.rpartition(".")
    return module, class_name


def _imported(name: str, module: str, class_name: str) -> type[Strategy]:
    try:
        found = getattr(importlib.import_module(module), class_name, None)
    except Exception as error:
        raise ConfigError(
            f"the module {module!r} cannot be imported",
            why=f"{type(error).__name__}: {error}",
            fix="install its package where the coordinator runs",
            key=_NAME,
        ) from error
    if found is None:
        raise ConfigError(f"the module {module!r} has no {class_name!r}", key=_NAME)
    if not (inspect.isclass(found) and issubclass(found, Strategy)):
        raise ConfigError(
            f"{name!r} is no strategy",
            fix="name a class that derives from flwr.serverapp.strategy.Strategy",
            key=_NAME,
        )
    return found


def _checked(name: str, strategy: type[Strategy], given: Options) -> Options:
    """Return the options as the class takes them; raises all problems at once."""
    known = {option.name: option for option in options_of(strategy)}
    problems: list[FedPrefError] = []
    checked: Options = {}
    for key, value in given.items():
        if key in EVERYONE:
            problems.append(
                ConfigError(
                    f"{key!r} is no option of a strategy here",
                    why="the run decides who trains and under which names records travel",
                    fix="use fraction, min-sites and quorum of the run config",
                    key=_OPTIONS,
                )
            )
        elif key in known:
            try:
                checked[key] = _typed(known[key], value)
            except ConfigError as error:
                problems.append(error)
        elif takes_anything(strategy):
            checked[key] = value
        else:
            problems.append(_unknown(name, key, known))
    problems += [
        ConfigError(f"{name} needs the option {option.name!r}", fix="give it", key=_OPTIONS)
        for option in known.values()
        if option.required and option.name not in given
    ]
    raise_all(problems)
    return checked


def _typed(option: Option, value: Any) -> Any:
    try:
        # Of a class that pydantic does not know, an instance is asked for.
        adapter = TypeAdapter(
            option.hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True)
        )
    except PydanticUserError:  # an annotation that pydantic cannot check: the class must
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError:
        raise ConfigError(
            f"the option {option.name} is {value!r}", fix=f"use {option.values}", key=_OPTIONS
        ) from None


def _unknown(name: str, key: str, known: Iterable[str]) -> ConfigError:
    known = list(known)
    listed = f"its options are {', '.join(known)}" if known else "it has none"
    return ConfigError(
        f"{name} has no option {key!r}", fix=_nearest(key, known) or listed, key=_OPTIONS
    )


def _construct(name: str, strategy: type[Strategy], options: Options) -> Strategy:
    try:
        return strategy(**options)
    except ConfigError as error:
        raise ConfigError(error.what, why=error.why, fix=error.fix, key=_OPTIONS) from None
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be made of these options",
            why=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            key=_OPTIONS if options else _NAME,
        ) from error


def _nearest(given: str, valid: Iterable[str]) -> str:
    """Return "did you mean …?", whatever the case of the letters, or ""."""
    lower = {name.lower(): name for name in valid}
    if given.lower() == "fedavg" and "pair-fedavg" in lower:
        return "FedAvg with the pairs as weights is called 'pair-fedavg'"
    near = difflib.get_close_matches(given.lower().replace("_", "-"), lower, n=1, cutoff=0.5)
    near = near or difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    return f"did you mean {lower[near[0]]!r}?" if near else ""
