"""The effect between finished runs through the real apps: equal to the pooled one, and private."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import run_server
from finished_runs import finish_run, kept_answers, make_sites
from flwr.app import Array, ArrayRecord, Message
from local_grid import LocalGrid

from fedpref.data import SiteDirectory
from fedpref.errors import ConfigError, RoundError
from fedpref.evaluation import paired_cluster_bootstrap
from fedpref.evaluation.bootstrap import (
    STATISTICS,
    cluster_counts,
    counts_array,
    draw_weights,
    paired_counts,
    stratum_generator,
)
from fedpref.evaluation.predictions import Prediction, read_predictions
from fedpref.evaluation.site_secret import SECRET_FILE, site_secret
from fedpref.federation import effect_site, wire
from fedpref.federation.effect_budget import BUDGET_FILE
from fedpref.federation.effect_question import DRAWS, Question
from fedpref.federation.effect_runs import read_arms
from fedpref.files import read_jsonl, write_jsonl
from fedpref_app.client_app import app as client_app

Settings = dict[str, Any]
PATIENTS = (30, 24, 37)


class World:
    """Sites and finished runs that a test may change, and the way to ask for an effect."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = sorted(path.parent for path in folder.glob("sites/*/site.toml"))
        self.grid: LocalGrid

    @property
    def sites(self) -> list[SiteDirectory]:
        return [SiteDirectory.load(path) for path in self.paths]

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def unstate(self, site: str, run: str) -> None:
        """Let a run's record say that the site withheld its counts."""
        path = self.run(run) / "rounds.jsonl"
        rows = rows_of(path)
        for row in rows:
            row["sites"][site]["counts"] = None
        write_jsonl(path, rows)

    def ask(self, effect: str, nodes: Sequence[int] | None = None, **options: Any) -> Any:
        """The content of effect.json; {x} in `effect` is the run directory x."""
        paths = {path.name: path for path in (self.folder / "runs").iterdir()}
        config = {
            "effect": re.sub(r"\{(.*?)\}", lambda name: str(paths[name[1]]), effect),
            "runs-dir": str(self.folder / "results"),
            "run-id": "result",
            "sites": str(self.folder / "sites"),
            "join-deadline": options.pop("deadline", 30.0),
        }
        number = len(self.paths) if nodes is None else len(nodes)
        chosen = [{"partition-id": n, "num-partitions": number} for n in nodes or range(number)]
        options.setdefault("node_configs", chosen)
        self.grid = LocalGrid(client_app, config, number, **options)
        run_server(self.grid, config)
        return json.loads((self.folder / "results" / "result" / "effect.json").read_text())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    sites = make_sites(folder / "sites", PATIENTS)
    for seed in (1, 2):
        finish_run(folder, sites, f"fedpref-{seed}", 0.75, seed=seed)
        finish_run(folder, sites, f"local-{seed}", 0.5, seed=seed)
    finish_run(
        folder, sites, "other-prompt", 0.6, federation="elsewhere", **{"prompt.style": "full"}
    )
    return folder


@pytest.fixture
def world(pristine: Path, tmp_path: Path) -> World:
    return World(shutil.copytree(pristine, tmp_path / "world"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def rewrite(path: Path, *, keep: Callable[[dict[str, Any]], bool]) -> None:
    write_jsonl(path, [row for row in rows_of(path) if keep(row)])


def number(patient: str) -> int:
    return int(patient.rpartition("-")[2])


class KnownSeed:
    """Instead of a site's secret: the draws of the pooled bootstrap for stratum k."""

    def __init__(self, stratum: int) -> None:
        self.stratum = stratum

    def generator(self, _clusters: Any) -> np.random.Generator:
        return stratum_generator(5, self.stratum)

    def fingerprint(self, value: object) -> str:
        return str(value)


def pooled_effect(world: World, arms: Sequence[Sequence[str]], statistic: Any) -> Any:
    """The effect as computed by somebody who sees all answers."""
    sites = world.sites
    home = {r.report_id: (s.name, r.patient_id) for s in sites for r in s.split("dev")}
    ids = sorted(home)
    counts = []
    for arm in arms:
        runs = [
            [r for site in sites for r in read_predictions(kept_answers(site, world.run(name)))]
            for name in arm
        ]
        counts.append(counts_array([three(rows) for rows in runs], ids))
    names, patients = (np.array([home[name][i] for name in ids]) for i in (0, 1))
    return paired_cluster_bootstrap(
        *counts, names, patients, statistic=statistic, draws=DRAWS, seed=5
    )


def three(rows: Sequence[Prediction]) -> dict[str, tuple[int, int, int]]:
    return {row.report_id: (row.counts.tp, row.counts.fp, row.counts.fn) for row in rows}


@pytest.mark.parametrize(
    "arms", [(["fedpref-1"], ["local-1"]), (["fedpref-1", "fedpref-2"], ["local-1", "local-2"])]
)
def test_known_seeds_give_the_pooled_result_through_the_messages(
    world: World, monkeypatch: pytest.MonkeyPatch, arms: Any
) -> None:
    order = {path / "state": k for k, path in enumerate(world.paths)}
    monkeypatch.setattr(effect_site, "site_secret", lambda state: KnownSeed(order[state]))
    words = " - ".join(",".join(f"{{{name}}}" for name in arm) for arm in arms)
    result = world.ask(words)
    for statistic in ("client_mean", "worst_site"):
        pooled = pooled_effect(world, arms, statistic)
        assert pooled.low is not None
        found = result["effects"][statistic]
        assert (found["effect"], found["low"], found["high"]) == (
            pooled.effect,
            pooled.low,
            pooled.high,
        )
    # Pooled over sites, the effect is the same; draws within sites give another interval.
    found = result["effects"]["global"]
    assert found["effect"] == pooled_effect(world, arms, "global").effect
    assert found["low"] < found["effect"] < found["high"]
    assert result["answers"] == {"totals": 3, "withheld": 0, "refused": 0}
    for name in STATISTICS:
        value = result["effects"][name]
        assert value["a"] - value["b"] == pytest.approx(value["effect"])


def test_what_the_coordinator_receives_holds_neither_weights_nor_seed(world: World) -> None:
    world.ask("{fedpref-1} - {local-1}")
    replies = {reply.content[wire.CONFIG][wire.SITE]: reply for reply in world.grid.replies}
    assert sorted(replies) == ["site-a", "site-b", "site-c"]
    for site in world.sites:
        content = replies[site.name].content
        # Field by field.
        assert set(content) == {wire.CONFIG, wire.ARRAYS}
        assert set(content[wire.CONFIG]) == {"status", "site", "num-partitions", "question"}
        arrays = {name: array.numpy() for name, array in content[wire.ARRAYS].items()}
        assert {name: array.shape for name, array in arrays.items()} == {
            "observed": (2, 1, 3),
            "draws": (DRAWS, 2, 1, 3),
        }
        # Byte by byte.
        sent = b"".join(array.data for array in content[wire.ARRAYS].values())
        sent += repr(content[wire.CONFIG]).encode()
        secret = site_secret(site.path / "state")
        rows = [
            read_predictions(kept_answers(site, world.run(n))) for n in ("fedpref-1", "local-1")
        ]
        ids = sorted(row.report_id for row in rows[0])
        patients = {row.report_id: row.patient_id for row in rows[0]}
        counts = [counts_array([three(arm)], ids) for arm in rows]
        names = np.array([patients[name] for name in ids])
        (clusters,) = cluster_counts(paired_counts(*counts), None, names)
        generator = secret.generator(clusters)
        key = generator.bit_generator.state["state"]["key"].tobytes()
        for hidden in (secret.key, key):
            for start in range(len(hidden) - 7):
                assert hidden[start : start + 8] not in sent
            assert hidden.hex().encode() not in sent
        weights = draw_weights(generator, len(clusters), DRAWS)
        assert (
            weights @ clusters.reshape(len(clusters), -1) == arrays["draws"].reshape(DRAWS, -1)
        ).all()
        for kind in (np.int64, np.int32, np.uint8, np.float64):
            for row in weights[:40].astype(kind):
                assert row.tobytes() not in sent
            for column in weights.T[:, :60].astype(kind):
                assert column.tobytes() not in sent
        for report in site.reports:
            for text in (report.report_id, report.patient_id, report.text[:30]):
                assert text.encode() not in sent
    # And nothing else has left: the file is made of it.
    written = (world.folder / "results" / "result" / "effect.json").read_text()
    assert "patient-" not in written
    assert "report-" not in written


def test_fields_are_those_of_the_documentation(world: World) -> None:
    text = (Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md").read_text("utf-8")
    section = text[text.index("## On request") :].split("\n## ")[0]
    world.ask("{fedpref-1} - {local-1}")
    few = world.paths[0] / "site.toml"
    few.write_text(few.read_text().replace("min_cell_size = 5", "min_cell_size = 31"))
    shutil.rmtree(world.folder / "results")
    seen = {name for r in world.grid.replies for part in r.content.values() for name in part}
    world.ask("{fedpref-1} - {local-1}")
    seen |= {name for r in world.grid.replies for part in r.content.values() for name in part}
    assert len(seen) == 7
    assert [name for name in seen if f"`{name}`" not in section] == []


def test_a_second_question_in_other_words_gets_the_same_draws(world: World) -> None:
    first = world.ask("{fedpref-1} - {local-1}@1")
    shutil.rmtree(world.folder / "results")
    second = world.ask("{local-1} - {fedpref-1}@1")
    for name in STATISTICS:
        one, other = first["effects"][name], second["effects"][name]
        assert (one["effect"], one["low"], one["high"]) == pytest.approx(
            (-other["effect"], -other["high"], -other["low"])
        )
    secrets = {(path / "state" / SECRET_FILE).read_bytes() for path in world.paths}
    assert len(secrets) == 3


def test_an_earlier_round_and_another_federation_can_be_asked(world: World) -> None:
    result = world.ask("{other-prompt}@0 - {local-2}@1")
    assert (result["a"][0]["round"], result["b"][0]["round"]) == (0, 1)
    assert result["a"][0]["federation"] == "elsewhere"
    assert result["answers"]["totals"] == 3
    assert result["synthetic"] is True


def test_a_site_with_few_patients_withholds_and_the_worst_site_is_unknown(world: World) -> None:
    path = world.paths[1] / "site.toml"
    path.write_text(path.read_text().replace("min_cell_size = 5", "min_cell_size = 13"))
    result = world.ask("{fedpref-1} - {local-1}")
    assert result["answers"] == {"totals": 2, "withheld": 1, "refused": 0}
    site = result["sites"]["site-b"]
    assert site["answer"] == "withheld"
    assert re.match(
        r"fewer than 3\d patients, who could be told apart \(minimum cell size 13", site["reason"]
    )
    assert "24" not in site["reason"]
    worst = result["effects"]["worst_site"]
    assert worst["effect"] is None
    assert worst["degenerate"] == "site-b sent no totals and may be the worst"
    assert result["effects"]["client_mean"]["low"] is not None
    # Nothing was drawn there, and no secret made.
    assert not (world.paths[1] / "state" / SECRET_FILE).exists()


def test_a_site_answers_so_many_questions_as_its_policy_allows(world: World) -> None:
    path = world.paths[1] / "site.toml"
    path.write_text(path.read_text().replace("effect_questions = 20", "effect_questions = 1"))

    def answer(effect: str) -> tuple[str, str | None]:
        site = world.ask(effect)["sites"]["site-b"]
        shutil.rmtree(world.folder / "results")
        return site["answer"], site["reason"]

    assert answer("{fedpref-1} - {local-1}") == ("totals", None)
    told = "the site answers at most 1 different questions (effect_questions in site.toml)"
    assert answer("{fedpref-2} - {local-2}") == ("withheld", told)
    # The same question gets the same draws, and costs nothing.
    assert answer("{fedpref-1} - {local-1}") == ("totals", None)
    path.write_text(path.read_text().replace("effect_questions = 1", "effect_questions = 2"))
    assert answer("{fedpref-2} - {local-2}") == ("totals", None)
    assert answer("{fedpref-1} - {local-1}@0") == ("withheld", told.replace("1", "2"))


def test_a_record_of_answered_questions_that_was_changed_is_refused(world: World) -> None:
    (world.paths[1] / "state" / BUDGET_FILE).write_text("{}")
    site = world.ask("{fedpref-1} - {local-1}")["sites"]["site-b"]
    assert site["answer"] == "refused"
    assert "the file does not hold the digests" in site["reason"]


def test_two_seeds_need_more_patients_than_one(world: World) -> None:
    # 16 patients do for one seed, 18 are needed for two; site-b has 17 now.
    rewrite(world.paths[1] / "reports.jsonl", keep=lambda row: number(row["patient_id"]) < 17)
    ids = {report["report_id"] for report in rows_of(world.paths[1] / "reports.jsonl")}
    rewrite(world.paths[1] / "annotations.jsonl", keep=lambda row: row["report_id"] in ids)
    for run in ("fedpref-1", "local-1"):
        rewrite(kept_answers(world.sites[1], world.run(run)), keep=lambda r: r["report_id"] in ids)
        world.unstate("site-b", run)
    assert world.ask("{fedpref-1} - {local-1}")["answers"]["totals"] == 3
    shutil.rmtree(world.folder / "results")
    result = world.ask("{fedpref-1},{fedpref-2} - {local-1},{local-2}")
    assert result["sites"]["site-b"]["reason"].startswith("fewer than 18 patients")
    assert result["answers"]["totals"] == 2


def without_federation(world: World) -> None:
    world.sites[1].state_dir("demo").rename(world.paths[1] / "state" / "older")


def without_answers(world: World) -> None:
    kept_answers(world.sites[1], world.run("local-1")).unlink()


def answers(world: World) -> Path:
    return kept_answers(world.sites[1], world.run("local-1"))


def fewer_answers(world: World) -> None:
    rows = rows_of(answers(world))
    rewrite(answers(world), keep=lambda row: row != rows[-1])


def other_patient(world: World) -> None:
    rows = rows_of(answers(world))
    rows[0]["patient_id"] = rows[1]["patient_id"]
    write_jsonl(answers(world), rows)


def edited_score(world: World) -> None:
    rows = rows_of(answers(world))
    rows[0]["counts"]["tp"] += 1
    write_jsonl(answers(world), rows)


def withdrawn_report(world: World) -> None:
    for name in ("reports.jsonl", "annotations.jsonl"):
        rows = rows_of(world.paths[1] / name)
        write_jsonl(world.paths[1] / name, rows[1:])


def new_annotation(world: World) -> None:
    rows = rows_of(world.paths[1] / "annotations.jsonl")
    first = next(row for row in rows if row["diseases"])
    first |= {"diseases": [], "findings": []}
    write_jsonl(world.paths[1] / "annotations.jsonl", rows)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without_federation, r"the federation demo is unknown here\."),
        (
            without_answers,
            r"no answers round-1-(?P<one>\w{12}-\w{6}) in federation demo\.",
        ),
        (
            fewer_answers,
            r"reports differ: (?P<one>\w{12}) in round 1 of .*, (?P<two>\w{12}) in round 1 of",
        ),
        (
            other_patient,
            r"reports differ: (?P<one>\w{12}) in round 1 .*, (?P<two>\w{12}) in round 1 of",
        ),
        (
            withdrawn_report,
            r"reports differ: (?P<one>\w{12}) in round 1 .*, (?P<two>\w{12}) in the site as it",
        ),
        (
            edited_score,
            r"scores differ: (?P<one>\w{12}) are stored, (?P<two>\w{12}) follow from the",
        ),
        (new_annotation, r"scores differ: (?P<one>\w{12}) are stored, (?P<two>\w{12}) follow from"),
    ],
)
def test_a_site_refuses_before_any_draw_and_names_both_values(
    world: World, spoil: Callable[[World], None], says: str
) -> None:
    spoil(world)
    result = world.ask("{fedpref-1} - {local-1}")
    reason = result["sites"]["site-b"]["reason"]
    found = re.search(says, reason)
    assert found, reason
    assert found.groupdict().get("one", "") != found.groupdict().get("two")
    assert reason.startswith("[FP600] ")
    assert not re.search(r"patient-\d|report-\d|/", reason)
    # What it was not asked about, such as another coordinator's federation, it does not tell.
    assert not re.search(r"elsewhere|\bolder|round-0", reason)
    assert result["answers"] == {"totals": 2, "withheld": 0, "refused": 1}
    reply = next(r for r in world.grid.replies if r.content[wire.CONFIG][wire.SITE] == "site-b")
    assert not reply.content.array_records


def of_site_b(change: Callable[[Message], None]) -> Callable[[int, Message], Message]:
    def tamper(site: int, reply: Message) -> Message:
        if site == 1:
            change(reply)
        return reply

    return tamper


def arrays(**changed: Any) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        old = {name: a.numpy() for name, a in reply.content[wire.ARRAYS].items()}
        new = {name: f(old) for name, f in changed.items()}
        kept = {k: v for k, v in {**old, **new}.items() if v is not None}
        reply.content[wire.ARRAYS] = ArrayRecord({k: Array(v) for k, v in kept.items()})

    return change


def fields(**changed: Any) -> Callable[[Message], None]:
    return lambda reply: reply.content[wire.CONFIG].update(changed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (arrays(weights=lambda old: np.ones((DRAWS, 24))), "observed and draws, and nothing else"),
        (arrays(observed=lambda old: None), "observed and draws, and nothing else"),
        (
            arrays(draws=lambda old: old["draws"][:400]),
            "400 draws of 2 arms and 1 seeds were sent, 10000 and 1 were",
        ),
        (arrays(draws=lambda old: old["draws"][:, :, 0]), r"draws is \(draws, 2, 1, 3\), not"),
        (arrays(draws=lambda old: old["draws"] * np.nan), "draws is no array of whole numbers"),
        (arrays(draws=lambda old: old["draws"] - 10_000), "draws holds counts that cannot be"),
        (
            arrays(
                draws=lambda old: (
                    old["draws"]
                    + np.array([[1, 0, 0]] * 1)[None, None] * np.array([1, 0])[None, :, None, None]
                )
            ),
            "other annotations",
        ),
        (
            arrays(observed=lambda old: old["observed"] + 1),
            r"tp, fp, fn are \[.*\] in the totals and \[.*\] in the run's",
        ),
        (fields(question="0" * 64), "to another question"),
        (fields(status="ready"), "unexpected status"),
        (fields(status="error", error="[FP450] \x1b[31mx\n" + "y" * 9000), r"\[FP450\] \[31mx"),
    ],
)
def test_totals_that_cannot_be_are_left_out_by_name(
    world: World, change: Callable[[Message], None], says: str
) -> None:
    result = world.ask("{fedpref-1} - {local-1}", tamper=of_site_b(change))
    site = result["sites"]["site-b"]
    assert (site["answer"], site["effect"]) == ("refused", None)
    assert re.search(says, site["reason"])
    assert len(site["reason"]) < 2100
    assert result["answers"] == {"totals": 2, "withheld": 0, "refused": 1}
    assert result["effects"]["client_mean"]["low"] is not None


def test_strangers_silent_and_doubled_sites_end_nothing(world: World) -> None:
    # site-c does not answer; node 3 is a second site-a; node 4 is of no run.
    stranger = make_sites(world.folder / "strangers", (20, 20, 20, 20))[3]
    configs = [{"site-dir": str(path)} for path in (*world.paths, world.paths[0], stranger.path)]
    result = world.ask(
        "{fedpref-1} - {local-1}", range(5), node_configs=configs, offline={2}, deadline=1.0
    )
    assert {site: entry["answer"] for site, entry in result["sites"].items()} == {
        "site-a": "refused",
        "site-b": "totals",
        "site-c": "refused",
    }
    assert result["sites"]["site-a"]["reason"] == "two SuperNodes answered for this site"
    assert result["sites"]["site-c"]["reason"] == "it gave no answer"
    assert stranger.name not in result["sites"]


def test_a_second_answer_for_a_site_takes_its_totals_away_whatever_it_says(world: World) -> None:
    changes = {
        "error": fields(site="site-a", status="error", error="[FP450] x"),
        "other question": fields(site="site-a", question="0" * 64),
        "totals": fields(site="site-a"),
    }
    for change in changes.values():
        result = world.ask("{fedpref-1} - {local-1}", tamper=of_site_b(change), deadline=2.0)
        assert result["sites"]["site-a"] == {
            "answer": "refused",
            "reason": "two SuperNodes answered for this site",
            "effect": None,
        }
        assert result["answers"] == {"totals": 1, "withheld": 0, "refused": 2}
        shutil.rmtree(world.folder / "results")


def test_without_any_totals_the_run_fails_and_the_file_says_why(world: World) -> None:
    for path in world.paths:
        (path / "state").rename(path / "gone")
    with pytest.raises(RoundError, match=r"no site sent totals.*site-a: .*federation demo is unkn"):
        world.ask("{fedpref-1} - {local-1}")
    result = json.loads((world.folder / "results" / "result" / "effect.json").read_text())
    assert result["answers"] == {"totals": 0, "withheld": 0, "refused": 3}
    assert result["effects"]["global"]["effect"] is None


@pytest.mark.parametrize(
    ("effect", "says"),
    [
        ("{fedpref-1}", 'write "A - B"'),
        ("{fedpref-1} - ", 'write "A - B"'),
        ("{fedpref-1} - /nowhere", "there is no run in this folder"),
        ("{fedpref-1}@2 - {local-1}", "round 2 is asked for, the run has 2 closed rounds"),
        ("{fedpref-1},{fedpref-2} - {local-1}", "arm A has 2 runs and arm B 1"),
        (
            "{fedpref-1} - {two-sites}",
            "sites are site-a, site-b, site-c in fedpref-1 and site-a, site-b in two",
        ),
        (
            "{fedpref-1},{short} - {local-1},{local-2}",
            "last round is 1 in fedpref-1 and 0 in short",
        ),
    ],
)
def test_a_wrong_question_is_refused_before_a_site_is_asked(
    world: World, effect: str, says: str
) -> None:
    finish_run(world.folder, world.sites[:2], "two-sites", 0.5)
    short = finish_run(world.folder, world.sites, "short", 0.5) / "rounds.jsonl"
    short.write_text(short.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match=re.escape(says)):
        world.ask(effect)
    assert world.grid.sent == []
    assert not (world.folder / "results").exists()


def test_a_result_is_not_overwritten(world: World) -> None:
    world.ask("{fedpref-1} - {local-1}")
    with pytest.raises(ConfigError, match="there is a folder 'result' already"):
        world.ask("{fedpref-1} - {local-1}")
    assert world.grid.sent == []


def test_arms_are_named_again_with_absolute_paths(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder / "runs")
    arms = read_arms("fedpref-1,fedpref-2 - local-1, local-2@0")
    assert arms.sites == ["site-a", "site-b", "site-c"]
    assert [run.round for run in (*arms.a, *arms.b)] == [1, 1, 0, 0]
    assert read_arms(arms.to_text()) == arms
    # Every site has an adapter of its own where it trained alone.
    assert len(set(arms.b[0].adapters.values())) == 3
    assert len(set(arms.a[0].adapters.values())) == 1


@pytest.mark.parametrize("federation", ["..", "a/b", "../../x", ".hidden", ""])
def test_a_question_cannot_name_a_path(federation: str) -> None:
    run = {"federation": federation, "round": 0, "asked": "0" * 64, "adapters": {"s": "0" * 64}}
    with pytest.raises(RoundError, match="the question for an effect is malformed"):
        Question.read(json.dumps({"a": [run], "b": [run]}))
    with pytest.raises(RoundError, match="arm a has 2 runs and arm b 1"):
        fine = run | {"federation": "demo"}
        Question.read(json.dumps({"a": [fine, fine], "b": [fine]}))
