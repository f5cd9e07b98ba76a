"""The tables of one run. Pure."""

from collections.abc import Sequence
from itertools import chain

from fedpref.report.common import config_table, versions_table, weights_table
from fedpref.report.comparison import MEASURE_NOTE, MEASURES
from fedpref.report.result import Run, RunConfigFile, RunRound
from fedpref.report.tables import (
    COUNT,
    MEGABYTES,
    PERCENT,
    PLAIN_ROUND,
    SECONDS,
    TEXT,
    Column,
    Table,
)
from fedpref.report.trace import Said, trace_tables

_SCORES = (
    ("client_mean", "Client-mean F1"),
    ("worst_site", "Worst-site F1"),
    ("pooled", "Global F1"),
    ("preference_accuracy", "Preference accuracy"),
)


def rounds_table(run: Run) -> Table:
    """Return one row a round: the scores."""
    return Table(
        name="rounds",
        title="Rounds",
        caption="Loc+dis micro-F1 on dev reports and preference accuracy on dev pairs; percent.",
        columns=(
            Column("round", "Round", PLAIN_ROUND),
            Column("stage", "Stage", TEXT),
            *(Column(key, title, PERCENT) for key, title in _SCORES),
        ),
        rows=tuple(
            (r.round, r.stage.upper(), *(getattr(r, key) for key, _ in _SCORES)) for r in run.rounds
        ),
    )


def measures_table(run: Run) -> Table:
    """Return one row a round: the secondary measures."""
    return Table(
        name="measures",
        title="Further measures",
        caption="Percent.",
        columns=(
            Column("round", "Round", PLAIN_ROUND),
            *(Column(key, title, PERCENT) for key, title in MEASURES),
        ),
        rows=tuple((r.round, *(getattr(r, key) for key, _ in MEASURES)) for r in run.rounds),
        notes=(MEASURE_NOTE,),
    )


def sites_table(run: Run) -> Table:
    """Return one row a site: pairs, dev reports and pairs, F1 after each round."""
    rows = []
    for site, pairs in run.sites.items():
        entries = [r.sites.get(site) for r in run.rounds]
        counted = [e.counts for e in entries if e is not None and e.counts is not None]
        last = counted[-1] if counted else {}
        f1 = (None if e is None else e.location_disease_f1 for e in entries)
        rows.append((site, pairs, last.get("reports"), last.get("pairs"), *f1))
    return Table(
        name="sites",
        title="Sites",
        caption="Loc+dis micro-F1 on the site's dev reports after each round; percent.",
        columns=(
            Column("site", "Site", TEXT),
            Column("pairs", "Pairs", COUNT),
            Column("dev_reports", "Dev reports", COUNT),
            Column("dev_pairs", "Dev pairs", COUNT),
            *(Column(f"round_{r.round}", f"Round {r.round}", PERCENT) for r in run.rounds),
        ),
        rows=tuple(rows),
    )


def disease_sites_table(run: Run) -> Table:
    """Return one row a site: disease F1 after each round."""
    return Table(
        name="sites-disease",
        title="Disease F1 by site",
        caption="After each round; percent.",
        columns=(
            Column("site", "Site", TEXT),
            *(Column(f"round_{r.round}", f"Round {r.round}", PERCENT) for r in run.rounds),
        ),
        rows=tuple(
            (site, *(e.disease_f1 if (e := r.sites.get(site)) else None for r in run.rounds))
            for site in run.sites
        ),
    )


def run_weights(run: Run) -> Table:
    """Return the aggregation weights, a row a round."""
    return weights_table({run.strategy: run.weights}, list(run.sites))


def run_said(run: Run) -> dict[str, Said]:
    """Return the weights, and what else the run's strategy said."""
    return {run.strategy: Said([r.strategy for r in run.rounds], run.weights)}


def costs_table(run: Run) -> Table:
    """Return one row a round and one in all: bytes in both directions, seconds."""
    rows = [(str(r.round), *_cost(r)) for r in run.rounds]
    totals = [sum(column) for column in zip(*(_cost(r) for r in run.rounds), strict=True)]
    columns = [Column("round", "Round", TEXT)]
    for half in ("training", "evaluation"):
        columns += [
            Column(f"{half}_down", f"{half.title()}, MB to sites", MEGABYTES),
            Column(f"{half}_up", f"{half.title()}, MB from sites", MEGABYTES),
            Column(half, f"{half.title()}, seconds", SECONDS),
        ]
    return Table(
        name="costs",
        title="Traffic and time",
        columns=tuple(columns),
        rows=(*rows, ("all", *totals)),
        strong=frozenset({len(rows)}),
    )


def left_out_table(run: Run) -> Table:
    """Return one row for each time a site was left out or gave no counts, and why."""
    rows = chain.from_iterable(_left_out(r) for r in run.rounds)
    return Table(
        name="left-out",
        title="Sites left out",
        columns=(
            Column("round", "Round", PLAIN_ROUND),
            Column("site", "Site", TEXT),
            Column("half", "Of", TEXT),
            Column("reason", "Because", TEXT),
        ),
        rows=tuple(rows),
    )


def _left_out(round_: RunRound) -> Sequence[tuple[int, str, str, str]]:
    training = [(site, "training", why) for site, why in round_.refused.training.items()]
    evaluation = [(site, "evaluation", why) for site, why in round_.refused.evaluation.items()]
    known = set(round_.refused.evaluation)
    silent = [
        (site, "evaluation", entry.no_counts_because)
        for site, entry in round_.sites.items()
        if entry.no_counts_because and site not in known
    ]
    return [(round_.round, *row) for row in (*training, *evaluation, *silent)]


def _cost(round_: RunRound) -> tuple[float, ...]:
    down_up = round_.bytes
    return (
        down_up.training.down,
        down_up.training.up,
        round_.seconds.training,
        down_up.evaluation.down,
        down_up.evaluation.up,
        round_.seconds.evaluation,
    )


def run_tables(run: Run, config: RunConfigFile) -> dict[str, Table]:
    """Return all tables of the run by name; those without rows are left out."""
    tables = (
        rounds_table(run),
        measures_table(run),
        sites_table(run),
        disease_sites_table(run),
        left_out_table(run),
        run_weights(run),
        *trace_tables(run_said(run), list(run.sites)),
        costs_table(run),
        config_table(config.config),
        versions_table(run.versions),
    )
    return {table.name: table for table in tables if table.rows}
