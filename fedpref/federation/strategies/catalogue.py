"""The strategies that have a name, with their options: the keyword arguments of their classes."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from flwr.serverapp.strategy import Strategy

from fedpref.federation.strategies import flower
from fedpref.federation.strategies.feddraw import FedDraw
from fedpref.federation.strategies.fedex import FedEx
from fedpref.federation.strategies.ffa import Ffa
from fedpref.federation.strategies.pair_fedavg import PairFedAvg
from fedpref.federation.strategies.svd import Svd
from fedpref.federation.strategies.uniform import Uniform

LOCAL: Final = "local"

_WORDS = {bool: "true | false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Named:
    """A strategy of the catalogue: its class, what it does in one line, and where it is from.

    `alters_training`: its sites train otherwise than those of the others, in round 0 as well.
    """

    strategy: type[Strategy]
    does: str
    source: str
    alters_training: bool = False


@dataclass(frozen=True)
class Option:
    """One keyword argument of a strategy; `hint` is its annotation, `default` inspect's own."""

    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def values(self) -> str:
        """What may be given, in words."""
        if get_origin(self.hint) is Literal:
            return " | ".join(str(value) for value in get_args(self.hint))
        return _WORDS.get(self.hint, getattr(self.hint, "__name__", str(self.hint)))


# With `local` nothing is aggregated across sites: every site is a federation of its own (see
# `federation.alone`), in which the mean of one adapter is that adapter.
NAMED: Final[Mapping[str, Named]] = {
    "pair-fedavg": Named(
        PairFedAvg,
        "mean of the adapters, weighted by the pairs trained",
        "FedAvg, arXiv:1602.05629",
    ),
    LOCAL: Named(PairFedAvg, "no aggregation: every site goes on alone", "the arm Local"),
    "uniform": Named(Uniform, "mean of the adapters, every site alike", "a baseline"),
    "feddraw": Named(
        FedDraw,
        "weights by size, then by similarity to the global adapter, at last equal",
        "FedDRAW, arXiv:2609.05223",
    ),
    "svd": Named(
        Svd,
        "best adapter of the run's rank for the mean of the products B·A",
        "FlexLoRA, arXiv:2402.11505",
    ),
    "fedex": Named(
        FedEx,
        "mean of the adapters; what it misses of the mean of B·A is served frozen beside it",
        "FedEx-LoRA, arXiv:2410.09432",
    ),
    "ffa": Named(
        Ffa,
        "lora_A frozen, lora_B trained and averaged: then the average is exact",
        "FFA-LoRA, arXiv:2403.12313",
        alters_training=True,
    ),
    "FedMedian": Named(
        flower.FedMedian, "median of every value over the sites", "Flower; arXiv:1803.01498"
    ),
    "FedTrimmedAvg": Named(
        flower.FedTrimmedAvg,
        "mean of every value without the extremes of either end",
        "Flower; arXiv:1803.01498",
    ),
    "Krum": Named(
        flower.Krum,
        "the one update that lies closest to its neighbours",
        "Flower; arXiv:1703.02757",
    ),
    "FedProx": Named(
        flower.FedProx,
        "pair-weighted mean; sites are held near the global adapter while they train",
        "Flower; arXiv:1812.06127",
        alters_training=True,
    ),
    "FedAvgM": Named(
        flower.FedAvgM, "pair-weighted mean with momentum", "Flower; arXiv:1909.06335"
    ),
    "FedAdam": Named(
        flower.FedAdam, "Adam on the mean of the sites' differences", "Flower; arXiv:2003.00295"
    ),
    "FedYogi": Named(
        flower.FedYogi, "Yogi on the mean of the sites' differences", "Flower; arXiv:2003.00295"
    ),
    "QFedAvg": Named(
        flower.QFedAvg,
        "a step in which sites with a high training loss lead",
        "Flower; arXiv:1905.10497",
    ),
}


def options_of(strategy: type[Strategy]) -> tuple[Option, ...]:
    """Return the options of a class in the order of its signature.

    Left out are those that the run decides about (`flower.EVERYONE`) and functions, which a run
    config cannot hold.
    """
    try:
        hints = get_type_hints(strategy.__init__)
    except Exception:  # a stranger's annotations may name what is only there for a type checker
        hints = {}
    return tuple(
        Option(name, hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(strategy).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in flower.EVERYONE
        and not name.endswith("_aggr_fn")
    )


def takes_anything(strategy: type[Strategy]) -> bool:
    """Return whether a class takes keyword arguments that its signature does not name."""
    parameters = inspect.signature(strategy).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
