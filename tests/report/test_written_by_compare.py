"""What `fedpref compare` computes is what the report reads."""

import json
from typing import Any

import numpy as np

from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.experiment.arms import MATCHED as ARMS
from fedpref.experiment.collect import ReportResult, RoundResult
from fedpref.experiment.results import compare_arms
from fedpref.report.comparison import comparison_tables, findings
from fedpref.report.result import Comparison

SITES = ("site-a", "site-b", "site-c")


def round_result(skill: float, seed: int) -> RoundResult:
    """Thirty reports of three sites; each of three findings is right with this probability."""
    rng = np.random.default_rng(seed)
    reports = {}
    for number in range(30):
        right = int((rng.random(3) < skill).sum())
        counts = EvaluationCounts(reports=1, tp=right, fp=3 - right, fn=3 - right, projected=1)
        reports[f"r{number}"] = ReportResult(SITES[number % 3], f"p{number // 2}", counts)
    record: dict[str, Any] = {
        "bytes": {"down": 10, "up": 20},
        "seconds": {"total": 1.5},
        "sites": {site: {"weight": 1 / 3} for site in SITES},
    }
    return RoundResult(reports, EvaluationCounts(pairs=9, pairs_preferred=6), 12, record)


def test_a_computed_comparison_is_read_and_shown() -> None:
    skills = {"fedpref": 0.6, "local": 0.4, "central": 0.8}
    results = {
        arm: [[round_result(skills[arm], 10 * seed + t) for t in range(2)] for seed in range(2)]
        for arm in ARMS
    }
    value = {
        "kind": "comparison",
        "complete": True,
        "run": "computed",
        "synthetic": True,
        "digest": "d" * 64,
        "config": {"rounds": 1},
        "seeds": [1, 2],
        "sites": {site: {"pairs": 4, "dev_reports": 10, "dev_pairs": 3} for site in SITES},
        **compare_arms(results, draws=50),
        "versions": {},
    }
    result = Comparison.model_validate_json(json.dumps(value))
    tables = comparison_tables(result)
    assert [row[0] for row in tables["headline"].cells] == ["Central", "FedPref", "Local"]
    assert tables["sites"].rows[0][0] == "site-a"
    assert all(row[-1] != "no data" for row in tables["sites"].cells)
    assert len(tables["effects"].rows) == 6
    assert tables["weights"].cells[0] == ["0", "0.3333", "0.3333", "0.3333"]
    assert "above Local" in findings(result)[0]
