"""The record of a closed round: one line of `rounds.jsonl`, a pure function of what came in."""

from collections.abc import Collection, Mapping
from typing import Any

from fedpref.evaluation.metrics import EvaluationCounts, disease_f1, summarise

Record = dict[str, Any]


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
    half of the round, the sites that were left out and why.
    """
    scores = summarise({site: counts.get(site) for site in sites})
    return {
        "round": round_,
        "stage": "sft" if round_ == 0 else "dpo",
        "trained": training["trained"],
        "adapter": training["adapter"],
        "root": training["root"],
        "client_mean": scores.client_mean,
        "worst_site": scores.worst_site,
        "pooled": scores.pooled,
        "disease_client_mean": scores.disease_client_mean,
        "disease_pooled": scores.disease_pooled,
        "projection_rate": scores.projection_rate,
        "strict_rate": scores.strict_rate,
        "truncation_rate": scores.truncation_rate,
        "false_positive_rate": scores.false_positive_rate,
        "preference_accuracy": scores.preference_accuracy,
        "sites": {
            site: {
                "pairs": training["pairs"].get(site),
                "weight": training["weights"].get(site, 0.0),
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


def _no_counts(
    site: str,
    counts: Mapping[str, EvaluationCounts],
    withheld: Collection[str],
    refused: Mapping[str, str],
) -> str | None:
    if site in counts:
        return None
    if site in withheld:
        return "withheld by the site's policy"
    return refused.get(site, "the site has not joined")
