"""A strategy's two turns in a round: who trains with what, and what becomes of the updates.

What it raises, or makes that is no adapter of the run, is an error that names it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.adapter_state import AdapterSpec, AdapterState, check_state
from fedpref.errors import FedPrefError, RoundError
from fedpref.federation import wire
from fedpref.federation.progress import say
from fedpref.federation.spool import SiteUpdate
from fedpref.federation.strategies.at_work import at_work
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
    weights: dict[str, float | None] | None
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
        arrays = wire.keyed_record(adapter)
        given = dict(arrays)
        with at_work(self._name):
            messages = list(
                self._strategy.configure_train(
                    # Flower counts rounds from 1, and some strategies divide by the number.
                    round_ + 1,
                    arrays,
                    ConfigRecord(),
                    SitesOnly(grid, list(sites)),
                )
            )
            if any(message.metadata.dst_node_id not in sites for message in messages):
                raise RoundError(f"the strategy {self._name} asks a node not of this round")
            if not all(_sends_only(given, message) for message in messages):
                raise RoundError(
                    f"the strategy {self._name} sends arrays that are not the round's adapter",
                    why="sites train from the global adapter, whatever a strategy sends",
                    fix="change the adapter where the updates are combined",
                )
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
        if len(sites) < (needed := sites_needed(self._strategy, self._name)):
            raise RoundError(
                f"{self._name} needs {needed} updates, round {round_} has {len(sites)}",
                why="with fewer it does not do what it is chosen for",
                fix="bring the missing sites back and resume the run",
            )
        with at_work(self._name):
            adapter, said = self._made(round_, updates, nodes)
            # Flower's FedAdam computes in float64: that is rounded once, here.
            adapter = {
                key: value.astype(np.float32) if value.dtype == np.float64 else value
                for key, value in adapter.items()
            }
            weights, trace = weights_by_site(said, sites), trace_by_site(said, sites)
            try:
                wider = getattr(self._strategy, "keeps_residual", False)
                check_state(adapter, spec_of(adapter, spec) if wider else spec)
            except FedPrefError as error:
                raise RoundError(
                    f"the strategy {self._name} made an unusable adapter",
                    why=error.what,
                    key=error.key,
                ) from None
        return Combined(adapter, weights, trace)

    def _made(
        self, round_: int, updates: Sequence[SiteUpdate], nodes: Mapping[str, int]
    ) -> tuple[AdapterState, Said]:
        """Return what the strategy makes of the updates; anything may be in it."""
        made: Any
        if isinstance(self._strategy, SiteStrategy):
            made = self._strategy.combine(round_, updates)
        else:
            made = self._strategy.aggregate_train(round_ + 1, Replies(updates, nodes, round_))
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError("it returned no pair of an adapter and what is said of the round")
        adapter, said = made
        if isinstance(adapter, ArrayRecord):
            adapter = wire.read_keyed(adapter)
        if not isinstance(adapter, dict):
            raise TypeError("it returned no adapter")
        if not all(isinstance(value, np.ndarray) for value in adapter.values()):
            raise TypeError("it returned an adapter of other things than numpy arrays")
        return adapter, dict(said or {})

    def _warn_of_unused(self, fields: set[str]) -> None:
        """Say once what a strategy sends that changes nothing: its sites would train as usual."""
        unused = fields - FIELDS - {_SERVER_ROUND} - self._unused
        self._unused |= unused
        for name in sorted(unused):
            say(f"the strategy sends {name!r}, which no site uses", warn=True)


def _sends_only(given: Mapping[str, Array], message: Message) -> bool:
    """Return whether the arrays of a message, if it has any, are those that were given."""
    return all(
        record.keys() == given.keys()
        and all(
            record[key] is array or record[key].data == array.data for key, array in given.items()
        )
        for record in wire.records(message.content, ArrayRecord).values()
    )
