"""Results as `fedpref compare` and `fedpref run` write them, and a browser to look at a page.

The comparison's scores are those of the paper's Table 8, its audit is that of Tables 2 and 7, so
that the tests of the tables compare with printed ones.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedpref.report import write_report

Value = dict[str, Any]

SEEDS = [20260713, 20260714, 20260715]
SITES = {f"site-{n}": pairs for n, pairs in enumerate((717, 591, 556, 486, 297, 314))}
# Client mean, worst site, preference accuracy: mean and sample deviation of each round (Table 8).
TABLE_8 = {
    "central": [
        ((57.85, 0.14), (55.72, 0.11), (86.70, 0.27)),
        ((69.34, 0.07), (67.45, 0.37), (90.51, 0.15)),
        ((71.21, 0.11), (69.49, 0.37), (94.15, 0.00)),
        ((71.77, 0.65), (70.03, 1.15), (94.95, 0.27)),
    ],
    "fedpref": [
        ((54.93, 0.47), (53.67, 0.18), (82.00, 0.41)),
        ((61.24, 0.30), (59.18, 0.47), (86.44, 0.27)),
        ((66.56, 0.52), (65.03, 0.47), (89.63, 0.00)),
        ((69.11, 0.17), (68.12, 0.22), (91.49, 0.27)),
    ],
    "local": [
        ((55.73, 0.37), (53.32, 1.30), (83.95, 0.15)),
        ((62.29, 0.13), (53.80, 0.06), (87.85, 0.31)),
        ((65.55, 0.26), (54.84, 0.35), (89.98, 0.31)),
        ((66.62, 0.32), (59.02, 1.45), (91.67, 0.85)),
    ],
}
# FedPref − Local at the selected round (Table 2).
TABLE_2 = [-1.87, 0.87, -1.72, 3.73, 9.46, 4.47]
LABELS = ["atelectasis", "consolidation", "lung opacity", "normal"]
# Of retained training pairs, four labels of Table 7.
TABLE_7 = [
    [24.5, 4.5, 61.5, 34.3],
    [35.5, 4.1, 50.8, 43.1],
    [41.2, 8.5, 73.4, 23.6],
    [48.8, 10.7, 89.5, 7.2],
    [26.6, 11.1, 62.6, 24.2],
    [43.0, 6.4, 72.3, 6.7],
]


def scores(mean: float, worst: float, accuracy: float) -> Value:
    """One round's scores, given in percent."""
    sites = [mean + step for step in (1.5, 1.0, 0.5, 0.0, -1.0)]
    f1 = dict(zip(SITES, [*sites, worst], strict=True))
    return {
        "client_mean": mean / 100,
        "worst_site": worst / 100,
        "pooled": (mean + 0.4) / 100,
        "disease_client_mean": 0.8636,
        "disease_pooled": 0.8701,
        "projection_rate": 1.0,
        "strict_rate": 0.9958,
        "truncation_rate": 0.0,
        "false_positive_rate": 0.0833,
        "preference_accuracy": accuracy / 100,
        "sites": {site: value / 100 for site, value in f1.items()},
        "disease_sites": {site: (value + 15) / 100 for site, value in f1.items()},
    }


def make_comparison(seeds: int = 3) -> Value:
    """A complete comparison.json of six sites and four rounds."""
    arms: Value = {}
    intervals: Value = {}
    for arm, rounds in TABLE_8.items():
        records = []
        for cells in rounds:
            # Three values with this mean and this sample deviation.
            by_seed = [
                scores(*(mean + sign * deviation for mean, deviation in cells))
                for sign in (-1, 0, 1)
            ]
            record = scores(*(mean for mean, _ in cells))
            records.append({**record, "by_seed": by_seed[:seeds]})
        arms[arm] = {
            "rounds": records,
            "exposure": {"pairs": 2961, "sft": 1, "dpo": 3},
            "bytes": {"down": 4_190_109_696 * seeds, "up": 4_190_109_696 * seeds},
            "seconds": 1234.5 * seeds,
        }
        intervals[arm] = [
            {
                "client_mean": [(mean[0] - 1.9) / 100, (mean[0] + 1.7) / 100],
                "worst_site": [(worst[0] - 3.4) / 100, (worst[0] + 2.1) / 100],
            }
            for mean, worst, _ in rounds
        ]
    return {
        "kind": "comparison",
        "complete": True,
        "run": "20260819-matched",
        "synthetic": True,
        "digest": "5f2c" * 16,
        "config": {
            "rounds": 3,
            "lora.rank": 16,
            "training.beta": 0.1,
            "ontology": "",
            "flag": True,
        },
        "seeds": SEEDS[:seeds],
        "rounds": 3,
        "selected_round": 3,
        "sites": {
            site: {"pairs": pairs, "dev_reports": pairs // 4, "dev_pairs": pairs // 8}
            for site, pairs in SITES.items()
        },
        "arms": arms,
        "effects": effects(),
        "trajectory_intervals": intervals,
        "weights": [{site: pairs / 2961 for site, pairs in SITES.items()}] * 4,
        "audit": make_audit(),
        "runs": [
            {"arm": arm, "seed": seed, "path": f"runs/{arm}-{seed}", "digest": "ab12" * 16}
            for arm in TABLE_8
            for seed in SEEDS[:seeds]
        ],
        "versions": {"fedpref": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    }


def effects() -> list[Value]:
    """FedPref − Local and Central − FedPref in every round, and by site at the last one."""
    rows: list[Value] = []
    for a, b in (("fedpref", "local"), ("central", "fedpref")):
        for round_ in range(4):
            pairs = zip(TABLE_8[a][round_], TABLE_8[b][round_], strict=True)
            mean, worst, _ = ((x[0] - y[0]) / 100 for x, y in pairs)
            for statistic, effect in (
                ("client_mean", mean),
                ("worst_site", worst),
                ("global", mean),
            ):
                subject = {"a": a, "b": b, "round": round_, "statistic": statistic}
                rows.append({**subject, **interval(effect)})
    rows += [
        {"a": "fedpref", "b": "local", "round": 3, "site": site, **interval(effect / 100)}
        for site, effect in zip(SITES, TABLE_2, strict=True)
    ]
    rows += [
        {"a": "central", "b": "fedpref", "round": 3, "site": site, **interval(0.01 * number)}
        for number, site in enumerate(SITES)
    ]
    # The paper's intervals.
    for row in rows:
        known = {"client_mean": (0.0124, 0.0379), "worst_site": (0.0101, 0.1187)}
        if row["a"] == "fedpref" and row["round"] == 3 and row.get("statistic") in known:
            row["low"], row["high"] = known[row["statistic"]]
    return rows


def interval(effect: float) -> Value:
    return {"effect": effect, "low": effect - 0.015, "high": effect + 0.018, "degenerate": None}


def make_audit() -> Value:
    """The JSON of `fedpref audit`, shortened to four labels."""
    rows = sum(SITES.values())
    overall = [
        sum(n * shares[label] for n, shares in zip(SITES.values(), TABLE_7, strict=True))
        / rows
        / 100
        for label in range(4)
    ]
    cohort = {
        "rows": rows,
        "sizes": SITES,
        "positive": {site: pairs // 2 for site, pairs in SITES.items()},
        "prevalence": {
            site: [share / 100 for share in shares]
            for site, shares in zip(SITES, TABLE_7, strict=True)
        },
        "overall": overall,
        "divergence": 0.0883,
        "divergence_labels": 4,
        "null_95": 0.0189,
        "ratio": 4.67,
        "p_value": 0.0005,
    }
    return {
        "kind": "audit",
        "mode": "simulation",
        "synthetic": True,
        "labels": LABELS,
        "sites": list(SITES),
        "permutations": 1999,
        "seed": 20260713,
        "support": [
            {
                "site": site,
                "train_reports": 2 * pairs,
                "train_reports_positive": pairs,
                "train_pairs": pairs,
                "train_pairs_positive": None,
                "dev_reports": pairs // 4,
                "dev_reports_positive": None,
                "dev_pairs": pairs // 8,
                "dev_pairs_positive": None,
            }
            for site, pairs in SITES.items()
        ],
        "cohorts": [{"cohort": "train_pairs", **cohort}, {"cohort": "dev_reports", **cohort}],
    }


def make_locked_test(seeds: int = 3) -> Value:
    """The JSON of `fedpref test`: the paper's locked test, each seed a little off the mean."""

    def part(part: int, whole: int) -> Value:
        share = part / whole
        low, high = max(share - 0.02, 0.0), min(share + 0.02, 1.0)
        return {"part": part, "whole": whole, "share": share, "low": low, "high": high}

    def policy(f1: float, disease: float, projected: int, false_positives: int) -> Value:
        rows = [
            {
                "location_disease_f1": f1 + off,
                "disease_f1": disease - off,
                "projection_rate": part(projected, 240),
                "false_positive_rate": part(false_positives, 132),
            }
            for off in (-0.004, 0.0, 0.004)
        ]
        return {
            "location_disease_f1": f1,
            "disease_f1": disease,
            "projection_rate": projected / 240,
            "false_positive_rate": false_positives / 132,
            "by_seed": rows[:seeds],
        }

    return {
        "round": 3,
        "seeds": SEEDS[:seeds],
        "synthetic": True,
        "earlier": [],
        "test": "ab" * 32,
        "reports": 240,
        "patients": 231,
        "policies": {
            "fedpref": policy(0.6868, 0.8636, 240, 11),
            "central": policy(0.7167, 0.9012, 239, 10),
        },
        "effect": {
            "a": "central",
            "b": "fedpref",
            "statistic": "global",
            "effect": 0.0298,
            "low": 0.0153,
            "high": 0.0454,
            "degenerate": None,
        },
        "draws": 10_000,
        "bootstrap_seed": 0,
        "duplicates": {
            "groups": 6,
            "reports": 14,
            "conflicting_groups": 2,
            "conflicting_reports": 5,
        },
    }


def make_contrast() -> Value:
    """The JSON of `fedpref contrast` with the figures of the paper's second pool."""
    f1 = {"teacher-a": 0.601, "teacher-b": 0.55, "target": 0.52}
    pool = {
        "pool": "teachers and target",
        "candidates": list(f1),
        "reports": 100,
        "patients": 98,
        "f1": f1,
        "best": "teacher-a",
        "baseline": "target",
        "baseline_f1": 0.52,
        "oracle_f1": 0.663,
        "headroom": 0.143,
        "usable": 76,
        "coverage": 0.76,
        "identical": 7,
        "identical_share": 0.07,
        "over_best": {"effect": 0.0621, "low": 0.037, "high": 0.0901, "degenerate": None},
    }
    none = {"effect": 0.0, "low": None, "high": None, "degenerate": "all draws are equal"}
    alike = {**pool, "pool": "alike", "best": None, "baseline": None, "over_best": none}
    return {
        "kind": "contrast",
        "synthetic": True,
        "split": "dev",
        "sites": list(SITES),
        "min_margin": 0.1,
        "draws": 10_000,
        "seed": 20260713,
        "pools": [pool, alike],
    }


def make_trace(sites: list[str]) -> tuple[list[Value], list[Value]]:
    """What FedDRAW says of four rounds, and the weights, which are equal at last."""
    trace, weights = [], []
    for number in range(4):
        values = {site: 0.1 + 0.01 * n for n, site in enumerate(sites)}
        trace.append(
            {
                "gamma": math.exp(-number),
                "beta": 10.0 - number if number < 3 else 0.0,
                "sizes": values,
                "similarities": {site: 0.999 + value / 1000 for site, value in values.items()},
                "reputations": dict(reversed(values.items())),
            }
        )
        parts = [1.0 + (3 - number) * n for n in range(len(sites))]
        weights.append({s: x / sum(parts) for s, x in zip(sites, parts, strict=True)})
    return trace, weights


def make_run() -> tuple[Value, Value]:
    """A complete run's summary.json and config.json: four sites, one refused, one withheld."""
    sites = {"site-a": 120, "site-b": 60, "site-c": 20, "site-d": 0}
    rounds = []
    for number in range(4):
        f1 = {"site-a": 0.5 + 0.05 * number, "site-b": 0.45 + 0.06 * number, "site-c": 0.40}
        entries: Value = {
            site: {
                "pairs": pairs,
                "weight": pairs / 200,
                "seconds": 1.5,
                "location_disease_f1": f1.get(site),
                "disease_f1": None if site not in f1 else f1[site] + 0.2,
                "counts": None if site not in f1 else {"reports": 40, "tp": 1, "pairs": 12},
                "no_counts_because": None if site in f1 else "withheld by the site's policy",
            }
            for site, pairs in sites.items()
        }
        refused: dict[str, str] = {}
        if number == 2:
            refused = {"site-c": "[FP600] the update is not finite"}
            entries["site-c"] |= {"pairs": None, "weight": 0.0}
        round_scores = scores(math.fsum(f1.values()) / 3 * 100, min(f1.values()) * 100, 80)
        rounds.append(
            {
                "round": number,
                "stage": "dpo" if number else "sft",
                "trained": True,
                "adapter": "a" * 64,
                "root": "a" * 64,
                **round_scores,
                "false_positive_rate": None,
                "sites": entries,
                "refused": {"training": refused, "evaluation": {}},
                "bytes": {
                    "down": 3_000_000,
                    "up": 2_500_000,
                    "training": {"down": 2_000_000, "up": 1_500_000},
                    "evaluation": {"down": 1_000_000, "up": 1_000_000},
                },
                "seconds": {"training": 12.25, "evaluation": 3.5, "total": 15.75},
            }
        )
    summary = {
        "complete": True,
        "run": "20260101-plain",
        "federation": "demo",
        "digest": "c0ff" * 16,
        "strategy": "pair-fedavg",
        "synthetic": False,
        "last_round": 3,
        "adapter": "adapters/round-3",
        "adapter_hash": "a" * 64,
        "sites": sites,
        "versions": {"fedpref": "0.1.0"},
        "bytes": {"down": 12_000_000, "up": 10_000_000},
        "seconds": 63.0,
        "rounds": rounds,
    }
    config = {
        "config": {"federation": "demo", "rounds": 3, "lora.alpha": 32.0},
        "digest": "c0ff" * 16,
        "fedpref": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
    }
    return summary, config


@pytest.fixture
def comparison() -> Value:
    return make_comparison()


@pytest.fixture(name="make_comparison")
def comparison_maker() -> Callable[..., Value]:
    return make_comparison


@pytest.fixture
def locked_test() -> Value:
    return make_locked_test()


@pytest.fixture
def contrast() -> Value:
    return make_contrast()


@pytest.fixture(name="make_trace")
def trace_maker() -> Callable[[list[str]], tuple[list[Value], list[Value]]]:
    return make_trace


@pytest.fixture
def run_files() -> tuple[Value, Value]:
    return make_run()


EVIL = "<script>alert(1)</script>\"'&<b>$x$"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a comparison and of a run with their reports, for tests that only read them.

    Two sites have an odd name and a long one, and some effects have words instead of an interval.
    """
    value = make_comparison()
    for row in value["effects"][::5]:
        row |= {"low": None, "high": None, "degenerate": "all draws are equal"}
    value["trace"], value["weights"] = make_trace(list(SITES))

    def renamed(part: Value) -> str:
        text = json.dumps(part).replace("site-4", "hospital-" + "with-a-name-without-spaces" * 2)
        return text.replace('"site-3"', json.dumps(EVIL))

    folder = tmp_path_factory.mktemp("written")
    paths = {"comparison": folder / "comparison", "run": folder / "run"}
    for path in paths.values():
        path.mkdir()
    parts = (("comparison", value), ("test", make_locked_test()), ("contrast", make_contrast()))
    for name, part in parts:
        (paths["comparison"] / f"{name}.json").write_text(renamed(part), encoding="utf-8")
    for name, part in zip(("summary", "config"), make_run(), strict=True):
        (paths["run"] / f"{name}.json").write_text(json.dumps(part), encoding="utf-8")
    for path in paths.values():
        write_report(path)
    return paths


@pytest.fixture
def write_comparison(tmp_path: Path) -> Callable[[Value], Path]:
    """Write a comparison.json into a new folder and return it."""

    def write(value: Value) -> Path:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "comparison.json").write_text(json.dumps(value), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[[Value, Value], Path]:
    """Write a run's summary.json and config.json into a new folder and return it."""

    def write(summary: Value, config: Value) -> Path:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return write


# The protocol's ends are the file descriptors 3 and 4; first both out of the way of 3 and 4.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, spoken to through a pipe in its DevTools protocol."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "about:blank",
        )
        self._log = (folder.parent / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), program, *options],
            pass_fds=(to_browser, from_browser),
            stdout=self._log,
            stderr=self._log,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._replies = os.fdopen(self._receive, "rb")
        self._number = 0
        self._buffer = b""
        self.events: list[Value] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Value:
        """Return the result of one command to the page."""
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> Value:
        self._number += 1
        message: Value = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._number:
            self.events.append(reply)
        assert "error" not in reply, reply["error"]
        return reply["result"]  # type: ignore[no-any-return]

    def _read(self) -> Value:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 16)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def open(self, path: Path, *, width: int) -> None:
        """Load a file at this width and wait until all of it is there."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._read())
        self.evaluate("document.fonts.ready.then(() => 1)")

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, which the page's policy cannot stop."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def close(self) -> None:
        with suppress(EOFError, BrokenPipeError):
            self._call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        self._replies.close()
        self._log.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(names)} is on the path")
    opened = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    try:
        yield opened
    finally:
        opened.close()
