"""An effect through real Flower, simulated and deployed: the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run, make_sites

ROOT = Path(__file__).parents[2]
FEDPREF = Path(sys.executable).parent / "fedpref"

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_a_simulation_and_a_deployment_give_the_same_effect(
    deployment: Any, tmp_path: Path
) -> None:
    sites = make_sites(tmp_path / "sites", (20, 24))
    a, b = (
        finish_run(tmp_path, sites, run_id, right, sites=str(tmp_path / "sites"))
        for run_id, right in (("fedpref", 0.9), ("local", 0.4))
    )
    simulated = subprocess.run(
        [str(FEDPREF), "effect", str(a), str(b), "--json"],
        cwd=ROOT,
        env={**os.environ, "FEDPREF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert simulated.returncode == 0, simulated.stderr[-4000:]
    told = json.loads(simulated.stdout)
    assert told["answers"] == {"totals": 2, "withheld": 0, "refused": 0}
    assert told["effects"]["client_mean"]["low"] > 0

    for site in sites:
        deployment.add_node(site.name, site.path)
    config = {"effect": f"{a} - {b}", "runs-dir": str(tmp_path / "results"), "run-id": "deployed"}
    assert deployment.run(config) == "finished:completed"
    result = tmp_path / "results" / "deployed"
    # The secret stays at the site, and equal questions get equal draws.
    assert json.loads((result / "effect.json").read_text()) == told

    shown = subprocess.run(
        [str(FEDPREF), "effect", str(result)],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "2 of 2 sites" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()[:-1])
