"""The federated bootstrap: equal to the pooled one, and what the server can and cannot learn."""

import io
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.errors import DataError
from fedpref.evaluation import paired_cluster_bootstrap
from fedpref.evaluation.bootstrap import (
    Effect,
    cluster_counts,
    draw_totals,
    draw_weights,
    paired_counts,
    stratum_generator,
)
from fedpref.evaluation.federated_bootstrap import (
    SiteTotals,
    Withheld,
    federated_bootstrap,
    fewest_patients,
    site_totals,
)
from fedpref.evaluation.site_secret import SECRET_FILE, SiteSecret, site_secret

SECRET = SiteSecret(bytes(range(100, 132)))
DRAWS = 400


def answers(rng: Any, rate: float, reports: int, seeds: int, target: Any) -> Any:
    """Counts (2, seeds, reports, 3): findings of a report found with `rate` and 0.2 less."""
    arms = []
    for right in (rate, rate - 0.2):
        tp = rng.binomial(target, right, size=(seeds, reports))
        fp = rng.binomial(3, 1 - right, size=(seeds, reports))
        arms.append(np.stack([tp, fp, target - tp], axis=-1))
    return np.stack(arms)


def cohort(seed: int, *, seeds: int = 3, patients: int = 50) -> tuple[Any, Any, Any]:
    """Two arms at one site, arm a the better one; the first ten patients have two reports."""
    rng = np.random.default_rng(seed)
    patient = np.array([f"p{i:03}" for i in [*range(patients), *range(10)]])
    a, b = answers(rng, 0.7, len(patient), seeds, rng.integers(0, 6, size=len(patient)))
    return a, b, patient


def sent(a: Any, b: Any, patient: Any, generator: Any = SECRET.generator) -> SiteTotals:
    totals = site_totals(a, b, patient, generator, min_cell_size=5, draws=DRAWS)
    assert isinstance(totals, SiteTotals)
    return totals


def known_draws(seed: int, stratum: int) -> Any:
    return lambda _clusters: stratum_generator(seed, stratum)


@pytest.mark.parametrize("statistic", ["client_mean", "worst_site"])
def test_known_seeds_give_the_pooled_result(statistic: Any) -> None:
    sites = {f"site-{k}": cohort(k, patients=40 + 7 * k) for k in range(4)}
    totals = {name: sent(*data, known_draws(5, k)) for k, (name, data) in enumerate(sites.items())}
    pooled = paired_cluster_bootstrap(
        np.concatenate([a for a, _, _ in sites.values()], axis=1),
        np.concatenate([b for _, b, _ in sites.values()], axis=1),
        np.repeat(list(sites), [len(p) for _, _, p in sites.values()]),
        np.concatenate([p for _, _, p in sites.values()]),
        statistic=statistic, draws=DRAWS, seed=5,
    )  # fmt: skip
    assert pooled.low is not None
    assert federated_bootstrap(totals, statistic=statistic) == pooled
    backwards = dict(reversed(totals.items()))
    assert federated_bootstrap(backwards, statistic=statistic) == pooled
    travelled = {name: SiteTotals.from_arrays(t.to_arrays()) for name, t in totals.items()}
    assert federated_bootstrap(travelled, statistic=statistic) == pooled


def test_global_of_one_site_is_the_pooled_one_and_of_several_keeps_their_sizes() -> None:
    a, b, patient = cohort(1)
    whole = paired_cluster_bootstrap(
        a, b, ["s"] * len(patient), patient, statistic="global", draws=DRAWS, seed=5
    )
    assert federated_bootstrap({"s": sent(a, b, patient, known_draws(5, 0))},
                               statistic="global") == whole  # fmt: skip
    # One site with F1 difference 1, one with 0: pooled draws vary in how many patients come from
    # each, draws within sites never do.
    right, wrong = np.array([1, 0, 0]), np.array([0, 1, 1])
    good, bad = np.tile(right, (1, 40, 1)), np.tile(wrong, (1, 40, 1))
    names = np.arange(40)
    totals = {"x": sent(good, bad, names), "y": sent(good, good, names)}
    stratified = federated_bootstrap(totals, statistic="global")
    assert stratified == Effect(0.5, None, None, "all draws are equal")
    pooled = paired_cluster_bootstrap(
        np.concatenate([good, good], 1), np.concatenate([bad, good], 1),
        np.repeat(["x", "y"], 40), np.arange(80), statistic="global", draws=DRAWS,
    )  # fmt: skip
    assert pooled.effect == 0.5
    assert pooled.low < 0.45  # type: ignore[operator]
    assert pooled.high > 0.55  # type: ignore[operator]


def test_known_draws_would_give_every_patient_away() -> None:
    """As many independent equations as patients: the reason why the seed is the site's secret."""
    a, b, patient = cohort(2)
    totals = sent(a, b, patient, known_draws(5, 0))
    (clusters,) = cluster_counts(paired_counts(a, b), None, patient)
    weights = draw_weights(stratum_generator(5, 0), len(clusters), DRAWS)
    assert np.linalg.matrix_rank(weights) == len(clusters) == 50
    solved = np.linalg.lstsq(weights, totals.draws.reshape(DRAWS, -1), rcond=None)[0]
    assert (solved.round().reshape(clusters.shape) == clusters).all()
    # Secret draws leave the server with fewer equations than patients: the rank of its own matrix.
    secret = sent(a, b, patient).draws.reshape(DRAWS, -1)
    assert np.linalg.matrix_rank(secret) <= 13 < len(clusters)


def separated(totals: Any, rng: np.random.Generator) -> Any:
    """Blind source separation by skewness (fixed point of Hyvärinen, 1999): (draws, sources)."""
    centred = totals - totals.mean(axis=0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    white = left[:, size > 1e-6 * size[0]] * len(totals) ** 0.5
    mixing = np.linalg.qr(rng.normal(size=(white.shape[1],) * 2))[0]
    for _ in range(200):
        u, _, v = np.linalg.svd(((white @ mixing.T) ** 2).T @ white)
        mixing = u @ v
    return white @ mixing.T


def test_few_patients_are_separable_without_the_seed_and_are_not_sent() -> None:
    """Three seeds, 13 independent columns: of 14 patients the weights are found, of 26 not."""

    def found(patients: int) -> float:
        rng = np.random.default_rng(patients)
        target = rng.integers(0, 8, size=patients)
        clusters = np.moveaxis(answers(rng, 0.7, patients, 3, target), 2, 0).astype(float)
        totals = draw_totals(clusters, stratum_generator(9, 0), 10_000)
        weights = draw_weights(stratum_generator(9, 0), patients, 10_000)
        sources = separated(totals.reshape(10_000, -1), rng)
        both = np.corrcoef(sources.T, weights.T)[: sources.shape[1], sources.shape[1] :]
        return float(np.median(np.abs(both).max(axis=0)))

    assert found(14) > 0.95
    assert found(fewest_patients(5, draws=10_000, seeds=3)) < 0.6


def test_fewest_patients_by_hand() -> None:
    # Twice the columns: tp and fp of 2 arms × seeds, and what is annotated.
    assert fewest_patients(1, draws=10_000, seeds=1) == 10
    assert fewest_patients(1, draws=10_000, seeds=3) == 26
    # 10,000 · C(16, 4) · (4/16)^16 = 0.0042; with 15 patients 10,000 · 1365 · (4/15)^15 = 0.034.
    assert fewest_patients(5, draws=10_000, seeds=1) == 16
    assert fewest_patients(50, draws=10_000, seeds=1) == 109


@given(st.integers(1, 60), st.integers(1, 20_000), st.integers(1, 4))
def test_fewest_patients_never_undercuts_the_policy(minimum: int, draws: int, seeds: int) -> None:
    fewest = fewest_patients(minimum, draws=draws, seeds=seeds)
    assert fewest >= max(minimum, 8 * seeds + 2)
    assert fewest <= fewest_patients(minimum + 1, draws=draws, seeds=seeds)


def test_no_sent_draw_covers_fewer_patients_than_the_policy() -> None:
    patients = fewest_patients(5, draws=10_000, seeds=1)
    weights = draw_weights(stratum_generator(0, 0), patients, 10_000)
    assert ((weights > 0).sum(axis=1) >= 5).all()
    # The policy's minimum alone would not do: here some draws are one patient five times.
    of_five = draw_weights(stratum_generator(0, 0), 5, 10_000)
    assert (of_five.max(axis=1) == 5).sum() > 5


def payload(totals: SiteTotals) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **totals.to_arrays())  # type: ignore[arg-type]
    return stream.getvalue()


def test_the_server_receives_neither_seed_nor_weights(tmp_path: Path) -> None:
    secret = site_secret(tmp_path)
    a, b, patient = cohort(3)
    totals = sent(a, b, patient, secret.generator)
    # Field by field: totals of the right shapes, no axis of 50 patients or 60 reports.
    assert [field.name for field in fields(SiteTotals)] == ["observed", "draws"]
    assert list(totals.to_arrays()) == ["observed", "draws"]
    assert (totals.observed == np.stack([a, b]).sum(axis=2)).all()
    assert totals.draws.shape == (DRAWS, 2, 3, 3)
    # Byte by byte: neither the secret, nor any part of it, nor the key of the stream.
    (clusters,) = cluster_counts(paired_counts(a, b), None, patient)
    sent_bytes = payload(totals)
    key = secret.generator(clusters).bit_generator.state["state"]["key"].tobytes()
    for hidden in (secret.key, secret.key[::-1], key, key[::-1]):
        for start in range(len(hidden) - 7):
            assert hidden[start : start + 8] not in sent_bytes
        assert hidden.hex().encode() not in sent_bytes
        assert str(int.from_bytes(hidden)).encode() not in sent_bytes
    weights = draw_weights(secret.generator(clusters), len(clusters), DRAWS)
    assert (weights @ clusters.reshape(50, -1) == totals.draws.reshape(DRAWS, -1)).all()
    for kind in (np.int64, np.int32, np.uint8, np.float64, np.float32):
        for row in weights[:50].astype(kind):
            assert row.tobytes() not in sent_bytes
        for column in weights.T[:, :50].astype(kind):
            assert column.tobytes() not in sent_bytes
    for name in patient:
        assert name.encode() not in sent_bytes


def test_totals_tell_nothing_of_which_patient_was_drawn() -> None:
    """Patients who are alike: whatever the weights, the very same bytes are sent."""
    same = np.tile([2, 1, 0], (3, 40, 1))
    payloads = {payload(sent(same, same, np.arange(40), known_draws(s, 0))) for s in range(5)}
    assert len(payloads) == 1


def test_equal_questions_get_equal_draws_and_others_independent_ones() -> None:
    a, b, patient = cohort(4)
    first = sent(a, b, patient)
    assert (sent(a, b, patient).draws == first.draws).all()
    order = np.random.default_rng(0).permutation(len(patient))
    shuffled = sent(a[:, order], b[:, order], patient[order])
    assert (shuffled.draws == first.draws).all()
    other_arm = sent(b, b, patient).draws[:, 1, 0, 0]
    assert (other_arm != first.draws[:, 1, 0, 0]).any()
    assert abs(np.corrcoef(other_arm, first.draws[:, 1, 0, 0])[0, 1]) < 0.2
    other_secret = sent(a, b, patient, SiteSecret(bytes(32)).generator)
    assert (other_secret.draws != first.draws).any()


def test_one_question_in_other_words_gets_the_same_draws() -> None:
    a, b, patient = cohort(4)
    draws = sent(a, b, patient).draws
    assert (sent(b, a, patient).draws == draws[:, ::-1]).all()
    order = [2, 0, 1]
    assert (sent(a[order], b[order], patient).draws == draws[:, :, order]).all()
    mixed = sent(np.stack([a[0], b[1], a[2]]), np.stack([b[2], a[1], b[0]]), patient).draws
    assert (mixed[:, 0, 1] == draws[:, 1, 1]).all()
    twice = sent(a[[0, 1, 2, 2]], b[[0, 1, 2, 2]], patient).draws
    assert (twice[:, :, [0, 1, 2]] == draws).all()


def test_a_fingerprint_tells_equal_values_of_one_site_and_no_more(tmp_path: Path) -> None:
    one, other = site_secret(tmp_path / "one"), site_secret(tmp_path / "other")
    rows = [["r1", "p1"], ["r2", "p1"]]
    assert one.fingerprint(rows) == site_secret(tmp_path / "one").fingerprint(list(rows))
    assert one.fingerprint(rows) != one.fingerprint(rows[::-1])
    assert one.fingerprint(rows) != other.fingerprint(rows)
    assert re.fullmatch(r"[0-9a-f]{12}", one.fingerprint(rows))


def test_both_arms_and_all_seeds_are_drawn_alike() -> None:
    a, _, patient = cohort(5, seeds=1)
    three = np.repeat(a, 3, axis=0)
    draws = sent(three, three, patient).draws
    assert (draws == draws[:, :1, :1]).all()
    assert np.ptp(draws[:, 0, 0, 0]) > 0


def test_a_small_site_withholds_and_the_others_go_on() -> None:
    a, b, patient = cohort(6, patients=50)
    few = patient < "p025"
    small = site_totals(a[:, few], b[:, few], patient[few], SECRET.generator, min_cell_size=5)
    assert isinstance(small, Withheld)
    assert "fewer than 26 patients" in small.reason
    assert not re.search(r"\b25\b", small.reason)  # not how many there are
    nobody = site_totals(a[:, :0], b[:, :0], [], SECRET.generator, min_cell_size=5)
    assert isinstance(nobody, Withheld)
    strict = site_totals(a, b, patient, SECRET.generator, min_cell_size=51)
    assert isinstance(strict, Withheld)
    full = {"b": sent(a, b, patient), "c": sent(b, a, patient)}
    assert federated_bootstrap({"a": None, **full}) == federated_bootstrap(full)
    reason = federated_bootstrap({"a": None, "b": None}).degenerate
    assert reason == "no site sent totals"


def test_what_has_no_interval_is_said() -> None:
    zero, one = np.zeros((1, 40, 3), int), np.tile([1, 0, 0], (1, 40, 1))
    names = np.arange(40)
    nothing = federated_bootstrap({"s": sent(zero, zero, names)})
    assert nothing == Effect(None, None, None, "an arm has no positives on either side")
    equal = federated_bootstrap({"s": sent(one, one, names)}, statistic="worst_site")
    assert equal == Effect(0.0, None, None, "all draws are equal")
    # One patient of 40 has all positives: a third of the draws miss that patient.
    rare = zero.copy()
    rare[0, 0] = [1, 1, 0]
    some = federated_bootstrap({"s": sent(rare, rare, names)})
    assert some.effect == 0.0
    assert some.low is None
    assert re.fullmatch(r"1\d\d of 400 draws have an arm without positives", some.degenerate or "")
    # A site without positives is no data: the other decides alone.
    a, b, patient = cohort(7, seeds=1)
    alone = federated_bootstrap({"s": sent(a, b, patient)})
    assert alone.low is not None
    assert federated_bootstrap({"s": sent(a, b, patient), "t": sent(zero, zero, names)}) == alone


@pytest.mark.parametrize(
    ("observed", "draws", "says"),
    [
        (np.zeros((2, 1, 3)), np.zeros((9, 2, 1, 3), int), "observed is no array of whole"),
        (np.zeros((2, 1, 3), int), np.full((9, 2, 1, 3), np.nan), "draws is no array of whole"),
        ([[[1, 2, 3]] * 2], np.zeros((9, 2, 1, 3), int), "observed is no array"),
        (np.zeros((3, 1, 3), int), np.zeros((9, 3, 1, 3), int), r"\(2, seeds, 3\), not \(3, 1"),
        (np.zeros((2, 0, 3), int), np.zeros((9, 2, 0, 3), int), r"\(2, seeds, 3\), not \(2, 0"),
        (np.zeros((2, 1, 3), int), np.zeros((9, 2, 2, 3), int), r"\(draws, 2, 1, 3\), not"),
        (np.zeros((2, 1, 3), int), np.zeros((0, 2, 1, 3), int), r"\(draws, 2, 1, 3\), not"),
        (np.zeros((2, 1, 3), int), np.full((9, 2, 1, 3), -1), "draws holds counts that cannot be"),
        (np.full((2, 1, 3), 2**60), np.zeros((9, 2, 1, 3), int), "observed holds counts"),
        (np.array([[[1, 0, 0]], [[0, 0, 2]]]), np.zeros((9, 2, 1, 3), int), "other annotations"),
        (np.zeros((2, 1, 3), int), np.array([[[[1, 0, 0]], [[0, 0, 2]]]] * 9), "other annotations"),
    ],
)
def test_malformed_totals_are_refused(observed: Any, draws: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SiteTotals.from_arrays({"observed": observed, "draws": draws})


def test_totals_that_do_not_fit_together_are_refused() -> None:
    a, b, patient = cohort(8)
    full = sent(a, b, patient)
    short = SiteTotals(full.observed, full.draws[:300])
    with pytest.raises(ValueError, match=r"\(400, 2, 3, 3\) at x and \(300, 2, 3, 3\) at y"):
        federated_bootstrap({"y": short, "x": full})
    with pytest.raises(ValueError, match="none of client_mean"):
        federated_bootstrap({"x": full}, statistic="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="and nothing else"):
        SiteTotals.from_arrays({**full.to_arrays(), "seed": np.array([1])})
    with pytest.raises(ValueError, match="does not name 60 reports"):
        site_totals(a, b, patient[1:], SECRET.generator, min_cell_size=5)
    with pytest.raises(ValueError, match="other annotations"):
        site_totals(a, b + np.array([0, 0, 1]), patient, SECRET.generator, min_cell_size=5)
    with pytest.raises(ValueError, match="one draw"):
        site_totals(a, b, patient, SECRET.generator, min_cell_size=5, draws=0)


def test_the_secret_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    state = tmp_path / "state" / "demo"
    first = site_secret(state)
    assert len(first.key) == 32
    assert site_secret(state) == first
    assert (state / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state.iterdir()] == [SECRET_FILE]
    others = [site_secret(tmp_path / str(k)).key for k in range(20)]
    assert all(x != y for x, y in pairwise(sorted([first.key, *others])))
    assert first.key.hex() not in repr(first)
    assert repr(first) == "SiteSecret()"


def test_a_secret_that_others_may_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    key = site_secret(tmp_path).key.hex()
    path = tmp_path / SECRET_FILE
    path.chmod(0o640)
    with pytest.raises(DataError, match="chmod 600") as caught:
        site_secret(tmp_path)
    assert key not in str(caught.value)
    path.chmod(0o600)
    for damaged in ("", key[:-2] + "\n", "x" * 64, "é" * 64):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(DataError, match="32 bytes in hexadecimal") as caught:
            site_secret(tmp_path)
        assert key[:8] not in str(caught.value)
