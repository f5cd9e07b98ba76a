"""Whole runs with fedex against fake sites: what is served, what travels, what comes back."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_site import SPEC, FakeWork, make_grid, make_sites, random_state, run_server
from flwr.app import Message

from fedpref.adapter_state import AdapterSpec, AdapterState, initial_state, pack, state_digest
from fedpref.errors import AdapterError
from fedpref.federation import wire
from fedpref.federation.aggregation import add_residuals, concatenate, fedex_aggregate
from fedpref.federation.difference import apply_difference, encode_difference
from fedpref.federation.quantise import Format, encoded_size
from fedpref.residual import load_served, rank_of, spec_of, split

SEED = 20260713
COUNTS = [5, 3, 1]
SHARES = [count / 9 for count in COUNTS]
FORMATS: tuple[Format, ...] = ("float32", "bfloat16", "int8", "int4")


def spec_with(*shapes: tuple[int, int], rank: int = 2) -> AdapterSpec:
    """A specification with a layer for each (out, in)."""
    sides = {}
    for number, (out, into) in enumerate(shapes):
        name = f"base_model.model.model.layers.{number}.self_attn.q_proj."
        sides |= {name + "lora_A.weight": (rank, into), name + "lora_B.weight": (out, rank)}
    return AdapterSpec(rank, 3.0, False, ("q_proj",), tuple(sides), tuple(sides.values()))


# Three sites of rank 2 leave a residual of rank 4 a round: three rounds stack up to 12.
WIDE = spec_with((40, 24), (24, 70))
PER_RANK = WIDE.parameter_count // WIDE.rank


def settings(folder: Path, **values: Any) -> dict[str, Any]:
    base = {"runs-dir": str(folder / "runs"), "run-id": "r", "rounds": 2, "join-deadline": 2.0}
    base |= {"strategy": "fedex"}
    return base | {key.replace("_", "-"): value for key, value in values.items()}


def run(folder: Path, spec: AdapterSpec = WIDE, **values: Any) -> Any:
    config = settings(folder, **values)
    grid = make_grid(make_sites(folder, COUNTS, spec=spec), config)
    run_server(grid, config)
    return grid


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def served(folder: Path, round_: int, spec: AdapterSpec = WIDE) -> AdapterState:
    return load_served(folder / "runs" / "r" / "adapters" / f"round-{round_}", spec)


def products(state: Mapping[str, Any], scale: float = 1.0) -> list[Any]:
    """scale·B·A of each layer in float64."""
    keys = [key for key in state if ".lora_A." in key]
    return [
        scale * state[k.replace("lora_A", "lora_B")].astype(np.float64) @ state[k] for k in keys
    ]


def updates_of(folder: Path, round_: int, spec: AdapterSpec = WIDE) -> list[AdapterState]:
    """What the sites of a finished run sent in a round, worked out again."""
    start = served(folder, round_ - 1, spec) if round_ else initial_state(spec, SEED)
    root = served(folder, 0, spec) if round_ else None
    sites = make_sites(folder / "again", COUNTS, spec=spec)
    return [site.train(round_, start, root).state for site in sites]  # type: ignore[union-attr]


def assert_served_exactly(folder: Path, round_: int, spec: AdapterSpec = WIDE) -> None:
    """The served update is the residual of before + Σ w·s·B·A, as far as float32 can hold it."""
    updates = [products(state, spec.scale) for state in updates_of(folder, round_, spec)]
    _, residual = split(served(folder, round_ - 1, spec) if round_ else {}, spec.rank)
    before = products(residual, spec.scale) if residual else [0.0] * len(spec.keys)
    for number, found in enumerate(products(served(folder, round_, spec), spec.scale)):
        new = sum(w * update[number] for w, update in zip(SHARES, updates, strict=True))
        size = (
            max(np.abs(update[number]).max() for update in updates) + np.abs(before[number]).max()
        )
        assert np.abs(found - before[number] - new).max() < 2e-6 * size


@pytest.mark.parametrize("spec", [WIDE, SPEC, spec_with((9, 30), (30, 40))])
def test_every_round_serves_the_exact_average(tmp_path: Path, spec: AdapterSpec) -> None:
    run(tmp_path, spec)
    for t, row in enumerate(rows(tmp_path)):
        assert_served_exactly(tmp_path, t, spec)
        state = served(tmp_path, t, spec)
        assert row["strategy"] == {"residual_rank": rank_of(state) - spec.rank}
        # Without the residual, it is plain averaging, which does not serve that.
        mean, _ = split(state, spec.rank)
        means = [
            sum(w * update[key].astype(np.float64) for w, update in zip(SHARES, made, strict=True))
            for made in [updates_of(tmp_path, t, spec)]
            for key in spec.keys
        ]
        for value, expected in zip(mean.values(), means, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(products(mean)[0], products(state)[0], atol=1e-2)


def test_the_rank_grows_by_the_round_and_never_past_the_smaller_side(tmp_path: Path) -> None:
    for name, spec, ranks in (
        ("wide", WIDE, [4, 8, 12]),
        ("tight", spec_with((9, 30), (10, 40)), [4, 8, 10]),
    ):
        run(tmp_path / name, spec)
        found = [row["strategy"]["residual_rank"] for row in rows(tmp_path / name)]
        assert found == ranks, name


def test_residuals_are_added_exactly_also_where_they_must_be_compressed() -> None:
    rng = np.random.default_rng(0)
    tight = spec_with((5, 9), (7, 6), rank=4)
    one, other = (
        {key: rng.normal(size=shape) for key, shape in zip(tight.keys, tight.shapes, strict=True)}
        for _ in range(2)
    )
    total = add_residuals(one, other)
    assert rank_of(total) == 6  # of 8: the smaller sides are 5 and 6
    assert not total[tight.keys[0]][5:].any()
    for found, a, b in zip(*map(products, (total, one, other)), strict=True):
        assert np.abs(found - a - b).max() <= 1e-10
    stacked = add_residuals(*(split(state, 2)[0] for state in (one, other)))
    assert rank_of(stacked) == 4
    for key, value in split(stacked, 2)[0].items():
        assert np.array_equal(value, split(one, 2)[0][key])


def test_rounds_of_fedex_add_up_to_1e_10_in_float64() -> None:
    rng = np.random.default_rng(1)
    spec = spec_with((12, 31), (40, 12))

    def made(rank: int) -> AdapterState:
        shapes = zip(spec.keys, spec.at_rank(rank).shapes, strict=True)
        return {key: rng.normal(size=shape) for key, shape in shapes}

    residual, expected = None, [0.0, 0.0]
    for _ in range(4):
        states = [made(2) for _ in COUNTS]
        mean, more = fedex_aggregate(states, COUNTS, [spec.scale] * 3)
        residual = more if residual is None else add_residuals(residual, more)
        sums = [
            sum(w * layer for w, layer in zip(SHARES, layers, strict=True))
            for layers in zip(*(products(state, spec.scale) for state in states), strict=True)
        ]
        whole = products(concatenate([mean, residual]), spec.scale)
        for found, before, new in zip(whole, expected, sums, strict=True):
            assert np.abs(found - before - new).max() <= 1e-10
        expected = products(residual, spec.scale)
    assert rank_of(residual) == 12  # type: ignore[arg-type]


# What travels


def down(grid: Any) -> list[tuple[str, str, str, Any]]:
    return [
        (m.metadata.message_type, m.metadata.group_id, name, array.numpy())
        for m in grid.sent
        if wire.ARRAYS in m.content
        for name, array in m.content[wire.ARRAYS].items()
    ]


@pytest.mark.parametrize("format_", FORMATS)
def test_only_what_is_new_of_the_residual_is_sent(tmp_path: Path, format_: Format) -> None:
    grid = run(tmp_path, wire=format_)
    sent = down(grid)
    assert len(sent) == 3 * 3
    for kind, round_, name, array in sent:
        assert kind == "evaluate"
        if format_ == "float32" and round_ == "0":  # nothing is spared where all is new
            assert ":" not in name
            assert array.nbytes == 4 * PER_RANK * 6
        else:
            assert ":" in name
            assert array.nbytes == encoded_size(WIDE.parameter_count, format_) + 4 * PER_RANK * 4
    # The way up carries no residual.
    ups = [m for m in grid.replies if wire.ARRAYS in m.content]
    assert len(ups) == 3 * 3
    for message in ups:
        ((_, array),) = message.content[wire.ARRAYS].items()
        # The server makes differences whole in the very message.
        assert array.numpy().nbytes == 4 * WIDE.parameter_count


def test_bytes_are_counted_with_the_residual(tmp_path: Path) -> None:
    grid = run(tmp_path)
    run(tmp_path / "x", strategy="pair-fedavg")
    sent = [m for m in grid.sent if m.metadata.message_type != "query"]
    assert sum(row["bytes"]["down"] for row in rows(tmp_path)) == wire.content_bytes(sent)
    for row, plain in zip(rows(tmp_path), rows(tmp_path / "x"), strict=True):
        more = row["bytes"]["down"] - plain["bytes"]["down"]
        assert more == pytest.approx(3 * 4 * PER_RANK * 4, abs=3 * 100)  # and longer names


@pytest.mark.parametrize("format_", ["int8", "int4"])
def test_a_lossy_wire_rounds_the_mean_and_not_the_residual(tmp_path: Path, format_: Format) -> None:
    run(tmp_path, wire=format_, rounds=0)
    start = initial_state(WIDE, SEED)
    updates = [encode_difference(start, u, WIDE, format_)[1] for u in updates_of(tmp_path, 0)]
    mean, residual = fedex_aggregate(updates, COUNTS, [WIDE.scale] * 3)
    found, beside = split(served(tmp_path, 0), WIDE.rank)
    assert state_digest(beside or {}) == state_digest(residual)
    assert state_digest(found) != state_digest(mean)
    assert state_digest(found) == state_digest(encode_difference(start, mean, WIDE, format_)[1])


def test_both_ends_restore_equal_bits_and_refuse_what_is_not_whole() -> None:
    before = random_state(1, WIDE.at_rank(5))
    after = concatenate([random_state(2, WIDE), split(before, 2)[1], random_state(3, WIDE)])  # type: ignore[list-item]
    for format_ in FORMATS:
        difference, given = encode_difference(before, after, WIDE, format_)
        assert difference is not None
        assert (difference.before, difference.after) == (state_digest(before), state_digest(given))
        restored = apply_difference(before, difference.payload, WIDE, format_)
        assert state_digest(restored) == difference.after
        assert rank_of(restored) == 7
        if format_ == "float32":
            assert state_digest(given) == state_digest(after)
        with pytest.raises(AdapterError, match="the encoded adapter has shape"):
            apply_difference(before, difference.payload[:-4], WIDE, format_)
    # A residual that was compressed anew has nothing in common with the one before.
    other = concatenate([random_state(2, WIDE), random_state(4, WIDE.at_rank(6))])
    for format_ in FORMATS:
        assert encode_difference(before, other, WIDE, format_) == (None, other)
        assert encode_difference(before, random_state(2, WIDE), WIDE, format_)[0] is None


def test_a_whole_adapter_is_read_by_its_length() -> None:
    state = random_state(1, WIDE.at_rank(9))
    outgoing = wire.Outgoing([state], WIDE)
    ((name, array),) = outgoing.record(()).items()
    assert array.numpy().size == 9 * PER_RANK
    content = wire.RecordDict({wire.ARRAYS: outgoing.record(())})
    assert state_digest(wire.read_states(content, WIDE).states[name]) == name


def test_an_update_with_a_residual_is_refused(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, COUNTS, spec=WIDE)

    def tamper(site: int, message: Message) -> Message:
        if site == 1 and message.metadata.message_type == "train":
            state = random_state(1, WIDE.at_rank(3))
            array = wire.Array(pack(state, spec_of(state, WIDE)))
            message.content[wire.ARRAYS] = wire.ArrayRecord({state_digest(state): array})
        return message

    config = settings(tmp_path, quorum=2, rounds=0)
    run_server(make_grid(sites, config, tamper=tamper), config)
    assert "flat adapter has shape" in rows(tmp_path)[0]["refused"]["training"]["site-b"]


# What is lost comes back whole


@pytest.mark.parametrize("format_", ["float32", "int4"])
@pytest.mark.parametrize(("kind", "lost_in"), [("train", 1), ("evaluate", 1), ("train", 2)])
def test_a_site_that_lost_its_state_gets_the_residual_whole(
    tmp_path: Path, format_: Format, kind: str, lost_in: int
) -> None:
    plain, lossy = tmp_path / "plain", tmp_path / "lossy"
    run(plain, wire=format_)
    config = settings(lossy, wire=format_)
    sites: list[FakeWork] = make_sites(lossy, COUNTS, spec=WIDE)

    def lose(round_: int) -> None:
        if round_ == lost_in:
            shutil.rmtree(sites[0].state_dir)

    setattr(sites[0], f"on_{kind}", lose)
    grid = make_grid(sites, config)
    run_server(grid, config)
    assert [row["adapter"] for row in rows(lossy)] == [row["adapter"] for row in rows(plain)]
    whole = [array for _, _, name, array in down(grid) if ":" not in name]
    assert len(whole) > 3 * (format_ == "float32")
