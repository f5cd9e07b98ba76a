"""The effect between two arms of finished runs, from totals that the sites draw themselves.

A run of the app of its own (`effect` in the run config): every site is asked once, answers or does
not, and the coordinator combines what came. Nothing is trained and no adapter travels.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError, RoundError
from fedpref.evaluation.bootstrap import STATISTICS, Effect, Statistic
from fedpref.evaluation.federated_bootstrap import SiteTotals, Withheld, federated_bootstrap
from fedpref.evaluation.metrics import EvaluationCounts, complete_mean, summarise
from fedpref.federation import wire
from fedpref.federation.cohort import partitions_told
from fedpref.federation.effect_question import (
    DRAWS,
    MESSAGE_TYPE,
    QUESTION,
    REASON,
    TOTALS,
    Question,
)
from fedpref.federation.effect_runs import Arms, read_arms
from fedpref.federation.exchange import POLL_SECONDS, ask_all
from fedpref.federation.guards import Refused, check_answer, printable
from fedpref.federation.progress import say
from fedpref.files import atomic_write

RESULT_FILE: Final = "effect.json"
_NO_ANSWER: Final = "it gave no answer"

Record = dict[str, Any]


def measure_effect(grid: Grid, config: RunConfig, *, poll: float = POLL_SECONDS) -> Record:
    """Ask the sites for the draws of `config.effect`, write `effect.json` and return its content.

    A site that withholds its totals, is refused or does not answer is named in it. Raises
    ConfigError before any site is asked, RoundError after the file was written if no site sent
    totals.
    """
    arms = read_arms(config.effect)
    question = arms.question()
    name = config.run_id or time.strftime("%Y%m%d-%H%M%S-effect-") + question.digest[:8]
    path = Path(config.runs_dir).absolute() / name / RESULT_FILE
    if path.parent.exists():
        raise ConfigError(
            f"there is a folder {name!r} already",
            file=path.parent,
            fix="choose another run-id",
            key="run-id",
        )
    answers = ask_sites(grid, config, arms, question, poll=poll)
    result = effect_record(arms, answers)
    atomic_write(path, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    say(f"{answers.summary()}: {_line(result['effects']['client_mean'])}\neffect: {path}")
    if not answers.totals:
        reasons = {**answers.withheld, **answers.refused}
        raise RoundError(
            "no site sent totals",
            why="; ".join(f"{site}: {reason}" for site, reason in sorted(reasons.items())),
            file=path,
        )
    return result


@dataclass
class Answers:
    """What came of the sites of the runs: every one of them is in one of the three."""

    totals: dict[str, SiteTotals] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def of(self, site: str) -> str | None:
        """Return how the site answered, None if it has not."""
        return next((k for k, answers in self._kinds() if site in answers), None)

    def reason(self, site: str) -> str | None:
        """Return why there are no totals of the site."""
        return self.withheld.get(site) or self.refused.get(site)

    def summary(self) -> str:
        """Return how many sites answered in which way."""
        return ", ".join(f"{kind} {len(answers)}" for kind, answers in self._kinds())

    def _kinds(self) -> Sequence[tuple[str, Mapping[str, object]]]:
        return ((TOTALS, self.totals), ("withheld", self.withheld), ("refused", self.refused))


def ask_sites(
    grid: Grid, config: RunConfig, arms: Arms, question: Question, *, poll: float = POLL_SECONDS
) -> Answers:
    """Return the sites' answers to the question; nothing that a site does ends it."""
    sites = arms.sites
    answers = Answers()
    nodes, partitions, nameless = 0, 0, 0
    say(f"asking {len(sites)} sites for {DRAWS:,} draws, at most {config.join_deadline:g} s")

    def request(node: int) -> Message:
        record = ConfigRecord({QUESTION: question.model_dump_json()})
        return Message(
            RecordDict({wire.CONFIG: record}),
            dst_node_id=node,
            message_type=MESSAGE_TYPE,
            group_id="effect",
            ttl=config.message_ttl,
        )

    def on_reply(node: int, reply: Message) -> None:
        nonlocal nodes, partitions, nameless
        nodes += 1
        partitions = max(partitions, partitions_told(reply))
        site = _name(reply)
        try:
            if answers.of(site):
                # Which of them is the site's nobody can tell.
                answers.totals.pop(site, None)
                answers.withheld.pop(site, None)
                raise Refused("two SuperNodes answered for this site")
            found = check_totals(reply, question, arms, site)
        except FedPrefError as error:
            if site in sites:
                answers.refused[site] = error.what
            nameless += not site
            who = f"site {site}" if site in sites else site or "a SuperNode"
            say(f"{who} is left out: {error.what}", warn=True)
            return
        if isinstance(found, Withheld):
            answers.withheld[site] = found.reason
            say(f"site {site} sends no totals: {found.reason}", warn=True)
        else:
            answers.totals[site] = found
            say(f"site {site} sent its totals")

    def enough() -> bool:
        # A SuperNode whose app does not even start cannot say whose it is.
        named = sum(answers.of(site) is not None for site in sites)
        return named + nameless >= len(sites) or 0 < partitions <= nodes

    ask_all(grid, request, on_reply, enough, deadline=config.join_deadline, poll=poll)
    for site in sites:
        if answers.of(site) is None:
            answers.refused[site] = _NO_ANSWER
            say(f"site {site} is left out: {_NO_ANSWER}", warn=True)
    return answers


def check_totals(
    reply: Message, question: Question, arms: Arms, site: str
) -> SiteTotals | Withheld:
    """Return what a site of the runs sent; raises Refused naming what is wrong with it.

    The totals are of this question, of the agreed number of draws and seeds, whole numbers, and
    over all reports they are what the site stated when the rounds were evaluated.
    """
    config = check_answer(reply)
    if site not in arms.sites:
        raise Refused("it was not part of the runs")
    status = wire.text(config, wire.STATUS)
    if status not in (TOTALS, wire.WITHHELD):
        raise Refused("the reply has an unexpected status")
    if wire.text(config, QUESTION) != question.digest:
        raise Refused("the reply is to another question")
    if status == wire.WITHHELD:
        return Withheld(printable(wire.text(config, REASON)))
    arrays = dict(item for part in reply.content.array_records.values() for item in part.items())
    try:
        totals = SiteTotals.from_arrays({k: wire.read_flat(array) for k, array in arrays.items()})
    except (ValueError, FedPrefError) as error:
        raise Refused(str(error)) from None
    if totals.draws.shape[:3] != (DRAWS, 2, question.seeds):
        found = " draws of 2 arms and ".join(str(totals.draws.shape[i]) for i in (0, 2))
        raise Refused(f"{found} seeds were sent, {DRAWS} and {question.seeds} were asked for")
    for arm, runs in enumerate(arms.stated(site)):
        for run, stated in enumerate(runs):
            _check_stated(totals.observed[arm, run].tolist(), stated)
    return totals


def effect_record(arms: Arms, answers: Answers) -> Record:
    """Return the content of `effect.json`: the effect a − b of those sites that sent totals."""
    return {
        "a": [run.to_dict() for run in arms.a],
        "b": [run.to_dict() for run in arms.b],
        "synthetic": arms.synthetic,
        "draws": DRAWS,
        "answers": {
            "totals": len(answers.totals),
            "withheld": len(answers.withheld),
            "refused": len(answers.refused),
        },
        "effects": {name: _effect(answers, name) for name in STATISTICS},
        "sites": {
            site: {
                "answer": answers.of(site),
                "reason": answers.reason(site),
                "effect": _measured({site: answers.totals[site]}, "client_mean")
                if site in answers.totals
                else None,
            }
            for site in arms.sites
        },
    }


def _effect(answers: Answers, statistic: Statistic) -> Record:
    absent = sorted({**answers.withheld, **answers.refused})
    if statistic == "worst_site" and absent and answers.totals:
        reason = f"{', '.join(absent)} sent no totals and may be the worst"
        return {"a": None, "b": None, **asdict(Effect(None, None, None, reason))}
    return _measured(answers.totals, statistic)


def _measured(totals: Mapping[str, SiteTotals], statistic: Statistic) -> Record:
    """Return a statistic of both arms, averaged over seeds, and its difference."""
    return {
        "a": _of_arm(totals, 0, statistic),
        "b": _of_arm(totals, 1, statistic),
        **asdict(federated_bootstrap(totals, statistic=statistic)),
    }


def _of_arm(totals: Mapping[str, SiteTotals], arm: int, statistic: Statistic) -> float | None:
    by_run = zip(*(part.observed[arm].tolist() for part in totals.values()), strict=True)
    values = []
    for run in by_run:
        scores = summarise({str(i): _three(counts) for i, counts in enumerate(run)})
        values.append(scores.pooled if statistic == "global" else getattr(scores, statistic))
    return complete_mean(values)


def _three(counts: Sequence[int]) -> EvaluationCounts:
    tp, fp, fn = counts
    return EvaluationCounts(tp=tp, fp=fp, fn=fn)


def _check_stated(found: list[int], stated: EvaluationCounts | None) -> None:
    if stated is not None and found != [stated.tp, stated.fp, stated.fn]:
        raise Refused(
            f"tp, fp, fn are {found} in the totals and {[stated.tp, stated.fp, stated.fn]} in "
            "the run's record"
        )


def _name(reply: Message) -> str:
    """Return the site that a reply names, "" if it names none."""
    name = wire.config_of(reply).get(wire.SITE) if reply.has_content() else None
    return printable(name) if isinstance(name, str) else ""


def _line(effect: Mapping[str, Any]) -> str:
    """Return an effect in one line, in points."""
    if effect["effect"] is None:
        return f"no effect ({effect['degenerate']})"
    point = f"client mean of a − b {100 * effect['effect']:+.2f} points"
    if effect["degenerate"]:
        return f"{point}, no interval ({effect['degenerate']})"
    return f"{point}, {100 * effect['low']:+.2f} to {100 * effect['high']:+.2f}"
