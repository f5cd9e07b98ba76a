"""The record of a closed round: one line of `rounds.jsonl`, a pure function of what came in."""

from collections.abc import Collection, Mapping
from typing import Any

from fedpref.evaluation.metrics import EvaluationCounts, client_mean, micro_f1, worst_site

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
    f1 = {site: _f1(counts.get(site)) for site in sites}
    total = sum(counts.values(), EvaluationCounts())
    return {
        "round": round_,
        "stage": "sft" if round_ == 0 else "dpo",
        "trained": training["trained"],
        "adapter": training["adapter"],
        "root": training["root"],
        "client_mean": client_mean(list(f1.values())),
        "worst_site": worst_site(list(f1.values())),
        "pooled": _f1(total),
        "sites": {
            site: {
                "pairs": training["pairs"].get(site),
                "weight": training["weights"].get(site, 0.0),
                "seconds": training["site_seconds"].get(site),
                "location_disease_f1": f1[site],
                "disease_f1": _disease_f1(counts.get(site)),
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


def _f1(counts: EvaluationCounts | None) -> float | None:
    return None if counts is None else micro_f1(counts.tp, counts.fp, counts.fn)


def _disease_f1(counts: EvaluationCounts | None) -> float | None:
    if counts is None:
        return None
    return micro_f1(counts.disease_tp, counts.disease_fp, counts.disease_fn)


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
