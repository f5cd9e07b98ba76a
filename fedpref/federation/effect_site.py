"""A site's answer to the question for an effect: totals of its own draws, or why there are none.

The numbers come from the answers that the site kept in `state/<federation>/predictions/`; no model
is needed. Nothing is drawn before everything has been checked.
"""

import logging
from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpref.config import RunConfig
from fedpref.data import Report, SiteDirectory
from fedpref.errors import RoundError, of_site
from fedpref.evaluation.bootstrap import counts_array
from fedpref.evaluation.federated_bootstrap import SiteTotals, Withheld, site_totals, too_few
from fedpref.evaluation.predictions import (
    Prediction,
    predictions_file,
    read_predictions,
    scored_again,
)
from fedpref.evaluation.site_secret import SiteSecret, site_secret
from fedpref.federation import wire
from fedpref.federation.effect_budget import over_budget, record_answer
from fedpref.federation.effect_question import (
    DRAWS,
    QUESTION,
    REASON,
    TOTALS,
    AskedRound,
    Question,
)
from fedpref.federation.site_place import SitePlace
from fedpref.task import ontology_of

_LOGGER = logging.getLogger("flwr")
_AGAIN = "run that federation again at this site"


def answer_effect(message: Message, config: RunConfig, place: SitePlace) -> Message:
    """Return the reply: the totals, or the status `withheld` with the rule that forbids them.

    Raises RoundError or DataError, before anything is drawn, if the site does not have the asked
    rounds, or if they were not measured on the reports that it has now.
    """
    question = Question.read(wire.text(wire.config_of(message), QUESTION))
    ontology = ontology_of(config.ontology)
    site = SiteDirectory.load(place.path, ontology)
    with of_site(site.name):  # what reads a file does not know whose it is
        result = effect_totals(site, question)
    record = ConfigRecord(
        {
            wire.STATUS: wire.WITHHELD if isinstance(result, Withheld) else TOTALS,
            wire.SITE: site.name,
            wire.PARTITIONS: place.partitions,
            QUESTION: question.digest,
        }
    )
    content = RecordDict({wire.CONFIG: record})
    if isinstance(result, Withheld):
        record[REASON] = result.reason
        _LOGGER.info("site %s: no totals for an effect: %s", site.name, result.reason)
    else:
        arrays = {name: Array(value) for name, value in result.to_arrays().items()}
        content[wire.ARRAYS] = ArrayRecord(arrays)
        labels = "; ".join(asked.label(site.name) for asked in question.rounds())
        _LOGGER.info("site %s: totals of %d draws sent for %s", site.name, DRAWS, labels)
    return Message(content, reply_to=message)


def effect_totals(site: SiteDirectory, question: Question) -> SiteTotals | Withheld:
    """Return what the site sends for a question; raises as `answer_effect` does."""
    reports = sorted(site.split("dev"), key=lambda report: report.report_id)
    patients = [report.patient_id for report in reports]
    minimum = site.policy.min_cell_size
    # First of all: a site with so few reports has kept no answers.
    withheld = too_few(len(set(patients)), minimum, draws=DRAWS, seeds=question.seeds)
    state = site.path / "state"
    withheld = withheld or over_budget(state, question.digest, site.policy.effect_questions)
    if withheld is not None:
        return withheld
    secret = site_secret(state)
    arms = [[_rows(site, asked) for asked in arm] for arm in (question.a, question.b)]
    _check_same_reports(site, secret, question, [rows for arm in arms for rows in arm])
    for asked, rows in zip(question.rounds(), (rows for arm in arms for rows in arm), strict=True):
        _check_scores(site, secret, asked, rows)
    ids = [report.report_id for report in reports]
    counts_a, counts_b = (counts_array([_counts(rows) for rows in arm], ids) for arm in arms)
    totals = site_totals(
        counts_a,
        counts_b,
        np.array(patients),
        secret.generator,
        min_cell_size=minimum,
        draws=DRAWS,
    )
    if not isinstance(totals, Withheld):
        record_answer(state, question.digest)
    return totals


def _rows(site: SiteDirectory, asked: AskedRound) -> list[Prediction]:
    """Return the answers of a round; RoundError if the site did not take part in it.

    What else the site has is said in its own log only: another federation is not the asker's.
    """
    if site.name not in asked.adapters:
        raise RoundError(
            f"the site was not part of federation {asked.federation}, asked were "
            f"{', '.join(sorted(asked.adapters))}",
            site=site.name,
        )
    state = site.state_dir(asked.federation)
    if not state.is_dir():
        known = sorted(path.name for path in state.parent.glob("[!.]*") if path.is_dir())
        _LOGGER.info("site %s: federations known: %s", site.name, ", ".join(known) or "none")
        raise RoundError(
            f"the federation {asked.federation} is unknown here",
            why="the site keeps its answers of a federation in its state folder",
            fix="restore the site's state folder, or run that federation at this site",
            site=site.name,
        )
    path = predictions_file(state, asked.round, asked.adapters[site.name], asked.asked)
    if not path.exists():
        kept = sorted(p.name.removesuffix(".jsonl") for p in path.parent.glob("round-*.jsonl"))
        _LOGGER.info("site %s: answers kept: %s", site.name, ", ".join(kept) or "none")
        raise RoundError(
            f"there are no answers {path.name.removesuffix('.jsonl')} in federation "
            f"{asked.federation}",
            why="a name holds round, adapter and how answers were asked for; the site's log lists "
            "those that it has",
            fix=_AGAIN,
            site=site.name,
        )
    return read_predictions(path)


def _check_same_reports(
    site: SiteDirectory,
    secret: SiteSecret,
    question: Question,
    found: Sequence[Sequence[Prediction]],
) -> None:
    """Raise RoundError unless all rounds are over the development reports of the site.

    The hashes in the message are the site's fingerprints, of no use elsewhere.
    """

    def fingerprint(rows: Iterable[Report | Prediction]) -> str:
        return secret.fingerprint(sorted([row.report_id, row.patient_id] for row in rows))

    now = fingerprint(site.split("dev"))
    told = [
        (asked.label(site.name), fingerprint(rows))
        for asked, rows in zip(question.rounds(), found, strict=True)
    ]
    (first, one), *others = told
    for label, other in [*others, ("the site as it is now", now)]:
        if other != one:
            raise RoundError(
                f"the development reports differ: {one} in {first}, {other} in {label}",
                why="an effect compares two arms on the same reports of the same patients",
                fix="restore the site's reports, or run both federations again",
                site=site.name,
            )


def _check_scores(
    site: SiteDirectory, secret: SiteSecret, asked: AskedRound, rows: Sequence[Prediction]
) -> None:
    """Raise RoundError unless every answer scores what is stored with it, as annotated now."""
    scored = [scored_again(row, site) for row in rows]
    stored = [row.counts for row in rows]
    if stored != scored:
        one, other = (
            secret.fingerprint([counts.to_dict() for counts in part]) for part in (stored, scored)
        )
        raise RoundError(
            f"the scores differ: {one} are stored, {other} follow from the answers, in "
            f"{asked.label(site.name)}",
            why="the answers or the annotations were changed after the evaluation",
            fix="restore them, or run both federations again",
            site=site.name,
        )


def _counts(rows: Sequence[Prediction]) -> dict[str, tuple[int, int, int]]:
    return {row.report_id: (row.counts.tp, row.counts.fp, row.counts.fn) for row in rows}
