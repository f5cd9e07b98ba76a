"""The sites of a run: waiting for them, knowing them by name, knowing which adapters they hold."""

from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpref import __version__
from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError, HandshakeError, raise_all
from fedpref.federation import wire
from fedpref.federation.exchange import POLL_SECONDS, Traffic, ask_all, exchange
from fedpref.federation.guards import Refused, site_error
from fedpref.federation.handshake import Agreement, SiteHandshake, agree
from fedpref.federation.participation import check_site_count
from fedpref.federation.progress import say
from fedpref.task import ONTOLOGY
from fedpref.task.prompt import prompt_digest

_REJOIN_DEADLINE = 60.0


@dataclass
class Member:
    """One site: where its messages go, its pair count, and the hashes it confirmed to hold."""

    site: str
    node: int
    pairs: int
    holds: set[str] = field(default_factory=set)


class Cohort:
    """The joined sites, sorted by name."""

    def __init__(self, handshakes: dict[int, SiteHandshake]) -> None:
        self.handshakes = tuple(handshakes.values())
        self.members = {
            h.site: Member(h.site, node, h.pairs, set(h.holds))
            for node, h in sorted(handshakes.items(), key=lambda item: item[1].site)
        }
        # Nodes that were asked once: a node that failed its handshake is not asked again.
        self._asked = set(handshakes)

    def __len__(self) -> int:
        return len(self.members)

    def only(self, site: str) -> "Cohort":
        """Return the cohort of one of these sites; the other sites' nodes are strangers to it."""
        alone = Cohort({})
        alone.handshakes = tuple(h for h in self.handshakes if h.site == site)
        alone.members = {site: self.members[site]}
        alone._asked = set(self._asked)
        return alone

    def rejoin(self, grid: Grid, config: RunConfig, agreement: Agreement) -> None:
        """Find known sites that came back under a new node id; strangers are left out.

        A SuperNode with a registered key keeps its id; one without gets a new one at each start.
        """
        new = [node for node in grid.get_node_ids() if node not in self._asked]
        self._asked.update(new)

        def on_reply(name: str, reply: Message) -> None:
            try:
                handshake = _read(reply)
                if handshake.site not in self.members:
                    raise Refused(f"site {handshake.site} was not there when the run started")
                agree([handshake], {**agreement.common, **_versions(agreement)})
                if handshake.pairs != self.members[handshake.site].pairs:
                    raise Refused(f"site {handshake.site} now has {handshake.pairs} pairs")
            except FedPrefError as error:
                say(f"SuperNode {name} is left out: {error}", warn=True)
                return
            member = self.members[handshake.site]
            member.node, member.holds = int(name), set(handshake.holds)
            say(f"site {handshake.site} is back")

        requests = {str(node): _query(config, node, "", "") for node in new}
        deadline = min(_REJOIN_DEADLINE, config.round_deadline)
        exchange(grid, requests, on_reply, deadline=deadline, traffic=Traffic())


def join(
    grid: Grid,
    config: RunConfig,
    *,
    adapter_hash: str = "",
    root_hash: str = "",
    poll: float = POLL_SECONDS,
) -> Cohort:
    """Wait for the sites, ask each for its handshake, and return those that answered well.

    The wait ends when `min-sites` and all partitions that the SuperNodes know of have answered, or
    at `join-deadline`.
    `adapter_hash` and `root_hash` ask resumed sites whether they still hold those adapters. Raises
    HandshakeError naming who joined and why others did not; ConfigError if the quorum is too large.
    """
    handshakes: dict[int, SiteHandshake] = {}
    failures: list[FedPrefError] = []
    expected = config.min_sites
    say(f"waiting for sites, at most {config.join_deadline:g} s")

    def on_reply(node: int, reply: Message) -> None:
        nonlocal expected
        expected = max(expected, partitions_told(reply))
        try:
            handshakes[node] = _read(reply)
        except FedPrefError as error:
            failures.append(error)
            say(f"a site cannot take part: {error}", warn=True)
        else:
            _announce(handshakes[node])

    def enough() -> bool:
        # If nobody knows how many SuperNodes there are, the first answers decide: it is an error.
        return len(handshakes) + len(failures) >= max(expected, 1)

    ask_all(
        grid,
        lambda node: _query(config, node, adapter_hash, root_hash),
        on_reply,
        enough,
        deadline=config.join_deadline,
        poll=poll,
    )
    _require(config, handshakes, failures, expected)
    return Cohort(handshakes)


def known_to_coordinator(config: RunConfig) -> dict[str, str]:
    """Return the handshake values that the coordinator can compute itself, without a model.

    With an ontology of its own, the file lies at the sites and is compared between them only.
    """
    known = {
        "federation": config.federation,
        "config": config.digest,
        "version:fedpref": __version__,
    }
    if not config.ontology:
        known["ontology"] = ONTOLOGY.digest
        known["prompt"] = prompt_digest(config.prompt.style, ONTOLOGY)
    return known


def _versions(agreement: Agreement) -> dict[str, str]:
    return {f"version:{name}": version for name, version in agreement.versions.items()}


def _query(config: RunConfig, node: int, adapter_hash: str, root_hash: str) -> Message:
    record = ConfigRecord(
        {
            wire.FEDERATION: config.federation,
            wire.ADAPTER_HASH: adapter_hash,
            wire.ROOT_HASH: root_hash,
        }
    )
    return Message(
        RecordDict({wire.CONFIG: record}),
        dst_node_id=node,
        message_type="query",
        group_id="handshake",
        ttl=config.message_ttl,
    )


def _read(reply: Message) -> SiteHandshake:
    if reply.has_error():
        raise HandshakeError(
            f"a SuperNode did not answer the handshake (Flower error {reply.error.code})",
            fix="read that SuperNode's own log; fedpref[site] must be installed there",
        )
    config = wire.config_of(reply)
    if wire.text(config, wire.STATUS) != wire.READY:
        name = config.get(wire.SITE)
        raise HandshakeError(site_error(reply), site=name if isinstance(name, str) else None)
    return SiteHandshake.from_record(config)


def _announce(handshake: SiteHandshake) -> None:
    reports = handshake.dev_reports
    shown = "few (withheld)" if reports is None else str(reports)
    say(f"site {handshake.site} joined: {handshake.pairs} pairs, {shown} development reports")


def partitions_told(reply: Message) -> int:
    """Return the number of SuperNodes that the replying one was told of, 0 if it was not."""
    if not reply.has_content():
        return 0
    number = wire.config_of(reply).get(wire.PARTITIONS, 0)
    return number if isinstance(number, int) else 0


def _require(
    config: RunConfig,
    handshakes: dict[int, SiteHandshake],
    failures: list[FedPrefError],
    expected: int,
) -> None:
    required = config.min_sites or expected
    if handshakes and not required:
        raise ConfigError(
            "the number of sites is unknown",
            why="min-sites is 0 and no SuperNode was started with num-partitions",
            fix="set min-sites to the number of sites",
            key="min-sites",
        )
    if len(handshakes) < max(required, 1):
        names = ", ".join(sorted(h.site for h in handshakes.values())) or "none"
        of = f"{len(handshakes)} of {required}" if required else "no"
        raise_all(
            [
                *failures,
                HandshakeError(
                    f"{of} sites joined within join-deadline = {config.join_deadline:g} s",
                    why=f"joined: {names}",
                    fix="start the missing SuperNodes, raise join-deadline or lower min-sites",
                ),
            ]
        )
    check_site_count(config, len(handshakes))
