"""One round: send, wait, guard, spool, aggregate; then the evaluation of the new adapter.

Flower's own `Strategy.start` has no start round, waits without a deadline and holds every reply;
here a strategy decides who trains with what and how updates are combined, and nothing else.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpref.adapter_state import AdapterState, state_digest
from fedpref.config import RunConfig
from fedpref.errors import FedPrefError, RoundError
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.federation import wire
from fedpref.federation.cohort import Cohort
from fedpref.federation.cohort_guards import ExtraMetrics, refuse_far, update_norm
from fedpref.federation.difference import Difference, encode_difference
from fedpref.federation.exchange import POLL_SECONDS, Traffic, exchange
from fedpref.federation.guards import (
    EVALUATED_METRICS,
    Expectation,
    Refused,
    check_counts,
    check_nothing_trained,
    check_reply,
    check_update,
)
from fedpref.federation.handshake import Agreement
from fedpref.federation.participation import sample_sites
from fedpref.federation.progress import say
from fedpref.federation.report import round_record, score_line
from fedpref.federation.spool import Spool
from fedpref.federation.strategy_turns import StrategyTurns
from fedpref.residual import split
from fedpref.training.adjustment import FREEZE_A, REPORT_LOSS

Record = dict[str, Any]
OnReply = Callable[[str, Message], Message | None]


@dataclass
class _Answers:
    """What came in during one exchange, by site."""

    started: float = field(default_factory=time.monotonic)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    resent: set[str] = field(default_factory=set)

    def now(self) -> float:
        return round(time.monotonic() - self.started, 3)


class Rounds:
    """Runs rounds with a cohort; `train` and `evaluate` are the two halves of one."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        cohort: Cohort,
        agreement: Agreement,
        strategy: Strategy,
        *,
        poll: float = POLL_SECONDS,
    ) -> None:
        self.grid, self.config, self.cohort = grid, config, cohort
        self.agreement, self.poll = agreement, poll
        self.strategy = StrategyTurns(strategy, config.strategy)
        self._extra = ExtraMetrics()
        # The way to the newest global adapter; a resumed run starts without one.
        self._difference: Difference | None = None

    def train(
        self, round_: int, adapter: AdapterState, root: AdapterState | None, spool: Spool
    ) -> tuple[AdapterState, Record]:
        """Return the next global adapter and the training part of the round's record.

        Round 0 is SFT from the initial adapter; later rounds are DPO from `adapter` with `root` as
        the fixed reference. If no site had anything to train, the adapter is returned unchanged.
        Raises RoundError if fewer sites than the quorum answered well before the deadline.
        """
        self.cohort.rejoin(self.grid, self.config, self.agreement)
        base, spec = state_digest(adapter), self.agreement.spec
        start, _ = split(adapter, spec.rank)  # a residual is not trained
        start_hash = state_digest(start)
        outgoing = wire.Outgoing([adapter, *([root] if root else [])], spec, self._difference)
        root_hash = state_digest(root) if root else ""
        answers, nothing, norms = _Answers(), set[str](), dict[str, float]()
        updates: dict[str, str] = {}
        asked = sample_sites(
            self.cohort.members,
            fraction=self.config.fraction,
            seed=self.config.seed,
            round_=round_,
            at_least=self.config.quorum,
        )
        nodes = {site: self.cohort.members[site].node for site in asked}
        strategy_configs = self.strategy.configure(round_, adapter, self.grid, nodes)
        say(f"round {round_}: {_stage(round_)} at {len(strategy_configs)} sites")

        def request(site: str) -> Message:
            return self._request(
                "train",
                site,
                round_,
                adapter_hash=base,
                root_hash=root_hash,
                outgoing=outgoing,
                config=strategy_configs[site],
            )

        def on_reply(site: str, reply: Message) -> Message | None:
            expected = self._expected(site, round_, base)
            expected = _as_told(expected, strategy_configs[site], start)
            statuses = (wire.TRAINED, wire.NOTHING_TRAINED, wire.LACKS)
            status = check_reply(reply, expected, statuses)
            if status == wire.LACKS:
                return self._resend(site, reply, answers, request)
            self._warn_of_extra(site, reply, expected.metrics)
            if status == wire.TRAINED:
                wire.make_whole(reply.content, start_hash, start, spec, self.config.wire)
                update = check_update(reply, expected)
                spool.put(site, update.flat, update.pair_count, update.loss)
                norms[site] = update_norm(update.flat, start, spec)
                updates[site] = update.adapter_hash
                detail = f"trained {update.pair_count} pairs"
            else:
                check_nothing_trained(reply, expected)
                nothing.add(site)
                detail = "has no pairs to train"
            say(f"round {round_}: site {site} {detail} ({answers.now():.1f} s)")
            return None

        requests = {site: request(site) for site in strategy_configs}
        self._exchange(round_, requests, on_reply, answers)
        for site, reason in refuse_far(norms, self.config.guards.norm_multiple).items():
            spool.discard(site)
            answers.refused[site] = reason
            say(f"round {round_}: site {site} is left out: {reason}", warn=True)
        answered = len(spool.pair_counts) + len(nothing)
        self._need_quorum(round_, "training", answered, len(requests), answers)
        weights: dict[str, float | None] | None = {}
        trace: Record = {}
        trained = bool(spool.pair_counts)
        if trained:
            combined, weights, trace = self.strategy.combine(
                round_, spool.updates(spec), nodes, spec
            )
            # All sites hold the round's start: what counts is what they can restore from there.
            self._difference, adapter = encode_difference(adapter, combined, spec, self.config.wire)
        else:
            say(f"round {round_}: no site trained, the adapter stays as it is", warn=True)
        spool_counts = dict(spool.pair_counts)
        spool.remove()
        return adapter, {
            "adapter": state_digest(adapter),
            "root": root_hash or state_digest(adapter),
            "trained": trained,
            "asked": list(requests),
            "norms": dict(sorted(norms.items())),
            "updates": updates,
            "pairs": spool_counts | dict.fromkeys(sorted(nothing), 0),
            "weights": weights,
            "strategy": trace,
            "refused": answers.refused,
            "site_seconds": answers.seconds,
            "bytes": {"down": answers.traffic.down, "up": answers.traffic.up},
            "seconds": answers.now(),
        }

    def evaluate(self, round_: int, adapter: AdapterState, training: Record) -> Record:
        """Let every site evaluate the adapter; return the complete record of the round.

        A site that withholds its counts, or that failed, is "no data" (null), never 0. Raises
        RoundError if fewer sites than the quorum answered well before the deadline.
        """
        base = state_digest(adapter)
        outgoing = wire.Outgoing([adapter], self.agreement.spec, self._difference)
        answers, counts, withheld = _Answers(), dict[str, EvaluationCounts](), set[str]()

        def request(site: str) -> Message:
            # The root is only named, so that the site keeps it and forgets older adapters.
            return self._request(
                "evaluate",
                site,
                round_,
                adapter_hash=base,
                root_hash=str(training["root"]),
                outgoing=outgoing,
                config=ConfigRecord(),
            )

        def on_reply(site: str, reply: Message) -> Message | None:
            statuses = (wire.EVALUATED, wire.WITHHELD, wire.LACKS)
            status = check_reply(reply, self._expected(site, round_, base), statuses)
            if status == wire.LACKS:
                return self._resend(site, reply, answers, request)
            self._warn_of_extra(site, reply, EVALUATED_METRICS)
            if status == wire.EVALUATED:
                counts[site] = check_counts(reply)
            else:
                withheld.add(site)
            return None

        self._exchange(
            round_, {site: request(site) for site in self.cohort.members}, on_reply, answers
        )
        answered = len(counts) + len(withheld)
        self._need_quorum(round_, "evaluation", answered, len(self.cohort), answers)
        record = round_record(
            round_,
            sites=self.agreement.sites,
            training=training,
            counts=counts,
            withheld=withheld,
            evaluation={
                "refused": answers.refused,
                "bytes": {"down": answers.traffic.down, "up": answers.traffic.up},
                "seconds": answers.now(),
            },
        )
        say(score_line(record))
        return record

    def _request(
        self,
        kind: str,
        site: str,
        round_: int,
        *,
        adapter_hash: str,
        root_hash: str,
        outgoing: wire.Outgoing,
        config: ConfigRecord,
    ) -> Message:
        """Return one request; adapters go along only if the site has not confirmed holding them."""
        member = self.cohort.members[site]
        lacking = outgoing.record(member.holds)
        fields = ConfigRecord(
            {
                **dict(config),
                wire.FEDERATION: self.config.federation,
                wire.ROUND: round_,
                wire.ADAPTER_HASH: adapter_hash,
                wire.ROOT_HASH: root_hash,
            }
        )
        content = RecordDict({wire.CONFIG: fields})
        if lacking:
            content[wire.ARRAYS] = lacking
        return Message(
            content,
            dst_node_id=member.node,
            message_type=kind,
            group_id=str(round_),
            ttl=self.config.message_ttl,
        )

    def _resend(
        self, site: str, reply: Message, answers: _Answers, request: Callable[[str], Message]
    ) -> Message:
        """Send once more, with the adapters that the site has lost."""
        if site in answers.resent:
            raise Refused("the site says again that it lacks an adapter that it was sent")
        answers.resent.add(site)
        member = self.cohort.members[site]
        member.holds -= set(wire.texts(wire.config_of(reply), wire.MISSING))
        say(f"site {site} has lost its state: sending the adapter again", warn=True)
        return request(site)

    def _exchange(
        self, round_: int, requests: dict[str, Message], on_reply: OnReply, answers: _Answers
    ) -> None:
        """Exchange; a reply that raises is a refusal, a confirmed adapter is remembered."""

        def guarded(site: str, reply: Message) -> Message | None:
            answers.seconds[site] = answers.now()
            try:
                again = on_reply(site, reply)
                self.cohort.members[site].holds |= _confirmed(reply)
            except FedPrefError as error:
                answers.refused[site] = error.what
                say(f"round {round_}: site {site} is left out: {error.what}", warn=True)
                return None
            return again

        missing = exchange(
            self.grid,
            requests,
            guarded,
            deadline=self.config.round_deadline,
            traffic=answers.traffic,
            poll=self.poll,
        )
        for site in missing:
            answers.refused[site] = (
                f"no reply within round-deadline = {self.config.round_deadline:g} s"
            )
            say(f"round {round_}: site {site}: {answers.refused[site]}", warn=True)

    def _warn_of_extra(self, site: str, reply: Message, known: frozenset[str]) -> None:
        if warning := self._extra.warning(site, reply, known):
            say(warning, warn=True)

    def _need_quorum(
        self, round_: int, what: str, answered: int, asked: int, answers: _Answers
    ) -> None:
        quorum = self.config.quorum or asked
        if answered < quorum:
            reasons = "; ".join(f"site {s}: {r}" for s, r in sorted(answers.refused.items()))
            raise RoundError(
                f"{what} of round {round_}: {answered} of {asked} sites answered "
                f"well, the quorum is {quorum}",
                why=reasons,
                fix="mend those sites and resume the run, or lower quorum",
            )

    def _expected(self, site: str, round_: int, base: str) -> Expectation:
        return Expectation(
            site=site,
            federation=self.config.federation,
            round=round_,
            spec=self.agreement.spec,
            base_hash=base,
            pairs=self.cohort.members[site].pairs,
        )


def _as_told(expected: Expectation, told: ConfigRecord, start: AdapterState) -> Expectation:
    """Return what is expected of a site that trains from `start` with a strategy's settings."""
    freezes = told.get(FREEZE_A) is True
    return replace(
        expected,
        loss=told.get(REPORT_LOSS) is True,
        frozen={key: value for key, value in start.items() if freezes and ".lora_A." in key},
    )


def _confirmed(reply: Message) -> set[str]:
    return set(wire.texts(wire.config_of(reply), wire.HOLDS))


def _stage(round_: int) -> str:
    return "SFT" if round_ == 0 else "DPO"
