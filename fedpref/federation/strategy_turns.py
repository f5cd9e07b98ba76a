"""A strategy's two turns in a round: who trains with what, and what becomes of the updates.

What it raises, or makes that is no adapter of the run, is an error that names it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.adapter_state import AdapterSpec, AdapterState, check_state
from fedpref.errors import FedPrefError, RoundError
from fedpref.federation import wire
from fedpref.federation.progress import say
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.base import Said, SiteStrategy
from fedpref.federation.strategies.build import sites_needed
from fedpref.federation.strategy_trace import trace_by_site, weights_by_site
from fedpref.federation.strategy_view import Replies, SitesOnly
from fedpref.residual import spec_of
from fedpref.training.adjustment import FIELDS

# Flower's strategies send it to every site; nobody there needs it.
_SERVER_ROUND = "server-round"


class Combined(NamedTuple):
    """The combined adapter, the weight of each site's update (None: there are none), the rest."""

    adapter: AdapterState
    weights: dict[str, float] | None
    trace: dict[str, Any]


class StrategyTurns:
    """The run's strategy, `name` in the configuration, as the round loop uses it."""

    def __init__(self, strategy: Strategy, name: str) -> None:
        self._strategy, self._name = strategy, name
        self._unused: set[str] = set()

    def configure(
        self, round_: int, adapter: AdapterState, grid: Grid, nodes: Mapping[str, int]
    ) -> dict[str, ConfigRecord]:
        """Return with what settings the sites train, by site; those left out are not asked.

        `nodes` are the node ids of the round's sites: the strategy sees no other.
        """
        sites = {node: site for site, node in nodes.items()}
        with self._at_work():
            messages = list(
                self._strategy.configure_train(
                    # Flower counts rounds from 1, and some strategies divide by the number.
                    round_ + 1,
                    wire.keyed_record(adapter),
                    ConfigRecord(),
                    SitesOnly(grid, list(sites)),
                )
            )
        if any(message.metadata.dst_node_id not in sites for message in messages):
            raise RoundError(f"the strategy {self._name} asks a node not of this round")
        by_site = {
            sites[message.metadata.dst_node_id]: wire.config_of(message) for message in messages
        }
        self._warn_of_unused({name for fields in by_site.values() for name in fields})
        return dict(sorted(by_site.items()))

    def combine(
        self,
        round_: int,
        updates: Sequence[SiteUpdate],
        nodes: Mapping[str, int],
        spec: AdapterSpec,
    ) -> Combined:
        """Give the updates, in site order, to the strategy; check what it makes of them.

        Ours get them as they lie on disk, others as Flower's replies.
        """
        sites = [update.site for update in updates]
        if len(sites) < (needed := sites_needed(self._strategy)):
            raise RoundError(
                f"{self._name} needs {needed} updates, round {round_} has {len(sites)}",
                why="with fewer it does not do what it is chosen for",
                fix="bring the missing sites back and resume the run",
            )
        with self._at_work():
            metrics: Said | MetricRecord | None
            if isinstance(self._strategy, SiteStrategy):
                adapter, metrics = self._strategy.combine(round_, updates)
            else:
                arrays, metrics = self._strategy.aggregate_train(
                    round_ + 1, Replies(updates, nodes, round_)
                )
                if arrays is None:
                    raise RoundError(f"the strategy {self._name} returned no adapter")
                adapter = wire.read_keyed(arrays)
        # Flower's FedAdam computes in float64: that is rounded once, here.
        adapter = {
            key: value.astype(np.float32) if value.dtype == np.float64 else value
            for key, value in adapter.items()
        }
        try:
            wider = getattr(self._strategy, "keeps_residual", False)
            check_state(adapter, spec_of(adapter, spec) if wider else spec)
        except FedPrefError as error:
            raise RoundError(
                f"the strategy {self._name} made an unusable adapter",
                why=error.what,
                key=error.key,
            ) from None
        said = dict(metrics or {})
        return Combined(adapter, weights_by_site(said, sites), trace_by_site(said, sites))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Turn what a strategy raises into an error that names it."""
        try:
            yield
        except FedPrefError:
            raise
        except Exception as error:
            raise RoundError(
                f"the strategy {self._name} failed",
                why=f"{type(error).__name__}: {error}",
            ) from error

    def _warn_of_unused(self, fields: set[str]) -> None:
        """Say once what a strategy sends that changes nothing: its sites would train as usual."""
        unused = fields - FIELDS - {_SERVER_ROUND} - self._unused
        self._unused |= unused
        for name in sorted(unused):
            say(f"the strategy sends {name!r}, which no site uses", warn=True)
