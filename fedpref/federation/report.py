"""The record of a closed round: one line of `rounds.jsonl`, a pure function of what came in."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedpref.evaluation.metrics import EvaluationCounts, disease_f1, summarise

Record = dict[str, Any]

# Why a site has no counts, if it is the site's own decision.
WITHHELD = "withheld by the site's policy"
# The scores of a round over all its sites, as `RoundMetrics` has them.
SCORES = (
    "client_mean",
    "worst_site",
    "pooled",
    "disease_client_mean",
    "disease_pooled",
    "projection_rate",
    "strict_rate",
    "truncation_rate",
    "false_positive_rate",
    "preference_accuracy",
)


def round_record(
    round_: int,
    *,
    sites: Mapping[str, int],
    training: Mapping[str, Any],
    counts: Mapping[str, EvaluationCounts],
    withheld: Collection[str],
    evaluation: Mapping[str, Any],
) -> Record:
    """Return the round's record: scores (null where there is no data), pairs, bytes, seconds.

    `sites` are the run's sites in order; every one of them has an entry. `refused` names, for each
    half of the round, the sites that were left out and why. `update` is the hash of the adapter
    that a site sent (round 0: of its root). A site's weight is null where the strategy has no
    weights; `strategy` is what the strategy says of the round.
    """
    weights = training["weights"]
    scores = summarise({site: counts.get(site) for site in sites})
    return {
        "round": round_,
        "stage": "sft" if round_ == 0 else "dpo",
        "trained": training["trained"],
        "adapter": training["adapter"],
        "root": training["root"],
        "strategy": training["strategy"],
        **{name: getattr(scores, name) for name in SCORES},
        "sites": {
            site: {
                "asked": site in training["asked"],
                "norm": training["norms"].get(site),
                "update": training["updates"].get(site),
                "pairs": training["pairs"].get(site),
                "weight": None if weights is None else weights.get(site, 0.0),
                "seconds": training["site_seconds"].get(site),
                "location_disease_f1": scores.sites[site],
                "disease_f1": disease_f1(counts[site]) if site in counts else None,
                "counts": counts[site].to_dict() if site in counts else None,
                "no_counts_because": _no_counts(site, counts, withheld, evaluation["refused"]),
            }
            for site in sites
        },
        "refused": {
            "training": dict(sorted(training["refused"].items())),
            "evaluation": dict(sorted(evaluation["refused"].items())),
        },
        "bytes": {
            "down": training["bytes"]["down"] + evaluation["bytes"]["down"],
            "up": training["bytes"]["up"] + evaluation["bytes"]["up"],
            "training": dict(training["bytes"]),
            "evaluation": dict(evaluation["bytes"]),
        },
        "seconds": {
            "training": training["seconds"],
            "evaluation": evaluation["seconds"],
            "total": round(training["seconds"] + evaluation["seconds"], 3),
        },
    }


def score_line(record: Record) -> str:
    """Return a closed round in one line; a run of one site names it."""
    head = f"round {record['round']}: "
    tail = f", {record['seconds']['total']:.1f} s"
    if len(record["sites"]) == 1:
        (site,) = record["sites"]
        return f"{head}site {site} alone {_percent(record['client_mean'])}{tail}"
    return (
        f"{head}client mean {_percent(record['client_mean'])}, "
        f"worst site {_percent(record['worst_site'])}{tail}"
    )


def _percent(value: float | None) -> str:
    return "no data" if value is None else f"{100 * value:.2f} %"


def side_by_side(records: Sequence[Record]) -> Record:
    """Return the record of one round of sites that trained alone, from each site's own record.

    There is no common adapter or root; a round is as long as its longest site's.
    """
    first = records[0]
    sites: dict[str, Any] = {s: e for record in records for s, e in record["sites"].items()}
    scores = summarise(
        {
            site: None if entry["counts"] is None else EvaluationCounts.from_dict(entry["counts"])
            for site, entry in sites.items()
        }
    )
    halves = ("training", "evaluation")
    return {
        "round": first["round"],
        "stage": first["stage"],
        "trained": any(record["trained"] for record in records),
        "adapter": None,
        "root": None,
        "strategy": {},
        **{name: getattr(scores, name) for name in SCORES},
        "sites": sites,
        "refused": {
            half: {s: why for record in records for s, why in record["refused"][half].items()}
            for half in halves
        },
        "bytes": {
            **{way: sum(record["bytes"][way] for record in records) for way in ("down", "up")},
            **{
                half: {
                    way: sum(record["bytes"][half][way] for record in records)
                    for way in ("down", "up")
                }
                for half in halves
            },
        },
        "seconds": {
            name: max(record["seconds"][name] for record in records) for name in (*halves, "total")
        },
    }


def _no_counts(
    site: str,
    counts: Mapping[str, EvaluationCounts],
    withheld: Collection[str],
    refused: Mapping[str, str],
) -> str | None:
    if site in counts:
        return None
    if site in withheld:
        return WITHHELD
    return refused.get(site, "the site has not joined")
