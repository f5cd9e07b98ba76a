"""The site's end of the wire: what a query, a train and an evaluate message get as a reply.

The numbers come from a `SiteWork` (see `site_work.py`); this module holds adapters by hash, checks
that a message and this site speak of the same thing, and builds replies. A reply holds the adapter,
counts and hashes, and nothing else.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedpref.adapter_state import AdapterSpec, AdapterState, state_digest
from fedpref.config import RunConfig
from fedpref.errors import RoundError
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation import wire
from fedpref.federation.adapter_store import AdapterStore
from fedpref.federation.difference import encode_difference
from fedpref.federation.handshake import SiteHandshake
from fedpref.residual import split
from fedpref.training.adjustment import Adjustment
from fedpref.training.trained import Trained

_LOGGER = logging.getLogger("flwr")


class SiteWork(Protocol):
    """What a site can compute; the one place with a model and data behind it."""

    @property
    def name(self) -> str:
        """The site's name."""

    @property
    def spec(self) -> AdapterSpec:
        """The adapter specification that the site's base model and the configuration give."""

    @property
    def base_name(self) -> str:
        """What the base model is called in saved adapters."""

    @property
    def state_dir(self) -> Path:
        """The folder of this federation's state at the site; never leaves."""

    @property
    def pair_count(self) -> int:
        """The pairs that the site has for training."""

    @property
    def dev_reports(self) -> int | None:
        """The development reports, or None if the site's policy withholds so small a count."""

    @property
    def synthetic(self) -> bool:
        """Whether the site's reports are invented."""

    def check(self) -> None:
        """Raise DataError for what could not be evaluated, before anything is trained."""

    def hashes(self) -> Mapping[str, str]:
        """Return the hashes `weights`, `tokenizer`, `prompt` and `ontology`."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that make the numbers."""

    def train(
        self,
        round_: int,
        start: AdapterState,
        root: AdapterState | None,
        adjustment: Adjustment,
    ) -> Trained | None:
        """Return the trained adapter and how it went, or None if there is nothing to train.

        `start` and `root` may hold a residual (`fedpref.residual`); the trained adapter has none.
        `adjustment` is what the run's strategy asks the site to change in its training.
        """

    def evaluate(self, round_: int, adapter: AdapterState) -> EvaluationCounts | None:
        """Return the development counts, or None if the site's policy withholds them."""


class SiteWorker:
    """Answers the coordinator's messages for one site."""

    def __init__(
        self, work: SiteWork, config: RunConfig, *, partition: int = -1, partitions: int = 0
    ) -> None:
        self.work, self.config = work, config
        self.partition, self.partitions = partition, partitions
        self.store = AdapterStore(work.state_dir / "adapters", work.spec, config.seed)

    def query(self, message: Message) -> Message:
        """Return the handshake, with those of the named adapters that the site holds."""
        request = wire.config_of(message)
        named = [wire.text(request, name) for name in (wire.ADAPTER_HASH, wire.ROOT_HASH)]
        work = self.work
        work.check()
        hashes = work.hashes()
        handshake = SiteHandshake(
            site=work.name,
            partition=self.partition,
            partitions=self.partitions,
            federation=self.config.federation,
            config=self.config.digest,
            weights=hashes["weights"],
            tokenizer=hashes["tokenizer"],
            prompt=hashes["prompt"],
            ontology=hashes["ontology"],
            spec=work.spec,
            initial=self.store.initial_hash,
            versions=work.versions(),
            pairs=work.pair_count,
            dev_reports=work.dev_reports,
            synthetic=work.synthetic,
            holds=tuple(self.store.holds([*named, self.store.initial_hash])),
        )
        return Message(RecordDict({wire.CONFIG: handshake.to_record()}), reply_to=message)

    def train(self, message: Message) -> Message:
        """Train from the named adapter and return the update, or say what is missing."""
        round_, base, root_hash = self._read(message)
        states, missing = self._obtain(message, [base, root_hash])
        if missing:
            return self._reply(message, wire.LACKS, {wire.MISSING: missing})
        adjustment = Adjustment.from_fields(wire.config_of(message))
        trained = self.work.train(round_, states[base], states.get(root_hash), adjustment)
        held = sorted(states)
        if trained is None:
            return self._reply(message, wire.NOTHING_TRAINED, {wire.BASE_HASH: base}, held=held)
        pairs = trained.trained_pair_count
        _LOGGER.info("site %s: round %d: trained %d pairs", self.work.name, round_, pairs)
        metrics: dict[str, int | float] = {wire.NUM_EXAMPLES: pairs}
        if adjustment.report_loss:
            metrics[wire.TRAIN_LOSS] = trained.mean_loss
        # The update is the adapter that the coordinator gets, not the one before rounding.
        spec = self.work.spec
        start, _ = split(states[base], spec.rank)
        difference, state = encode_difference(start, trained.state, spec, self.config.wire)
        name = state_digest(state)
        reply = self._reply(
            message, wire.TRAINED, {wire.BASE_HASH: base, wire.ADAPTER_HASH: name}, held=held
        )
        outgoing = wire.Outgoing([state], spec, difference)
        # The coordinator holds what it named.
        there = {difference.before} if difference else set[str]()
        reply.content[wire.ARRAYS] = outgoing.record(there - {name})
        reply.content[wire.METRICS] = MetricRecord(dict(metrics))
        return reply

    def evaluate(self, message: Message) -> Message:
        """Evaluate the named adapter and return counts, or say what is missing or withheld."""
        round_, base, root_hash = self._read(message)
        states, missing = self._obtain(message, [base])
        self.store.keep_only([base, root_hash])
        if missing:
            return self._reply(message, wire.LACKS, {wire.MISSING: missing})
        counts = self.work.evaluate(round_, states[base])
        if counts is None:
            return self._reply(message, wire.WITHHELD, {}, held=[base])
        reply = self._reply(message, wire.EVALUATED, {}, held=[base])
        reply.content[wire.METRICS] = MetricRecord(dict(counts.to_dict()))
        return reply

    def _read(self, message: Message) -> tuple[int, str, str]:
        """Return round, adapter hash and root hash of a request for this federation."""
        request = wire.config_of(message)
        federation = wire.text(request, wire.FEDERATION)
        if federation != self.config.federation:
            raise RoundError(
                f"a message for the federation {federation!r} came to {self.config.federation!r}",
                site=self.work.name,
            )
        return (
            wire.number(request, wire.ROUND),
            wire.text(request, wire.ADAPTER_HASH),
            wire.text(request, wire.ROOT_HASH),
        )

    def _obtain(
        self, message: Message, names: list[str]
    ) -> tuple[dict[str, AdapterState], list[str]]:
        """Return the named adapters, from the message or the store, and what must be sent whole.

        The latter are the hashes of named adapters that are not here and, then, of adapters from
        which a difference could not be followed. What the message brought is kept.
        """
        spec = self.work.spec
        brought = wire.read_states(message.content, spec, self.config.wire, self.store.load)
        for name, state in brought.states.items():
            self.store.save(name, state, self.work.base_name)
        wanted = [name for name in dict.fromkeys(names) if name]
        found = {name: brought.states.get(name) or self.store.load(name) for name in wanted}
        missing = [name for name, state in found.items() if state is None]
        return (
            {name: state for name, state in found.items() if state is not None},
            [*missing, *brought.unusable] if missing else [],
        )

    def _reply(
        self,
        message: Message,
        status: str,
        fields: Mapping[str, str | list[str]],
        *,
        held: list[str] | None = None,
    ) -> Message:
        request = wire.config_of(message)
        record = ConfigRecord(
            {
                wire.STATUS: status,
                wire.SITE: self.work.name,
                wire.FEDERATION: self.config.federation,
                wire.ROUND: wire.number(request, wire.ROUND),
                wire.HOLDS: sorted({*(held or []), self.store.initial_hash}),
                **fields,
            }
        )
        return Message(RecordDict({wire.CONFIG: record}), reply_to=message)
