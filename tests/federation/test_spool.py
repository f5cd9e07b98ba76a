"""The spool: sorted by site, whatever the order of arrival; nothing stays."""

from pathlib import Path

import numpy as np
import pytest
from fake_site import SPEC, random_state

from fedpref.adapter_state import pack, state_digest
from fedpref.federation.aggregation import weighted_mean
from fedpref.federation.spool import Spool

# The files that this process has open.
OPEN = Path("/proc/self/fd")


def test_updates_come_back_in_site_order_bit_for_bit(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 2)
    states = {site: random_state(seed) for site, seed in (("c", 3), ("a", 1), ("b", 2))}
    for number, (site, state) in enumerate(states.items(), 1):
        spool.put(site, pack(state, SPEC), number, None if site == "a" else number / 4)
    found = spool.updates(SPEC)
    assert [(u.site, u.pairs, u.loss) for u in found] == [
        ("a", 2, None),
        ("b", 3, 0.75),
        ("c", 1, 0.25),
    ]
    assert list(spool.pair_counts.items()) == [("a", 2), ("b", 3), ("c", 1)]
    for update in found:
        assert list(update.state) == list(SPEC.keys)
        assert state_digest(update.state) == state_digest(states[update.site])


def test_a_tensor_is_read_when_it_is_looked_at(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0)
    spool.put("a", pack(random_state(1), SPEC), 1)
    (update,) = spool.updates(SPEC)
    (path,) = (tmp_path / "round-0").iterdir()
    assert path.stat().st_size == 4 * SPEC.parameter_count
    other = random_state(2)
    path.write_bytes(pack(other, SPEC).tobytes())
    assert np.array_equal(update.state[SPEC.keys[1]], other[SPEC.keys[1]])
    with pytest.raises(KeyError):
        update.state["x"]
    path.write_bytes(pack(other, SPEC).tobytes()[:-1])
    with pytest.raises(OSError, match="shorter than an adapter"):
        update.state[SPEC.keys[1]]


@pytest.mark.skipif(not OPEN.exists(), reason="needs /proc")
def test_few_files_are_open_whatever_the_number_of_sites(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0)
    states = [random_state(seed) for seed in range(100)]
    for number, state in enumerate(states):
        spool.put(f"{number:03}", pack(state, SPEC), 1)
    before = len(list(OPEN.iterdir()))
    updates = spool.updates(SPEC)
    for update, state in zip(updates, states, strict=True):
        assert state_digest(update.state) == state_digest(state)
    assert len(list(OPEN.iterdir())) - before == 64
    del updates, update
    assert len(list(OPEN.iterdir())) == before


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_the_mean_over_files_is_that_over_arrays(tmp_path: Path, order: list[int]) -> None:
    states, counts = [random_state(seed) for seed in range(3)], [5, 1, 3]
    spool = Spool(tmp_path, 0)
    for i in order:
        spool.put("abc"[i], pack(states[i], SPEC), counts[i])
    updates = spool.updates(SPEC)
    mean = weighted_mean([u.state for u in updates], [u.pairs for u in updates])
    assert state_digest(mean) == state_digest(weighted_mean(states, counts))


def test_a_site_has_one_update_a_round(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0)
    spool.put("a", np.zeros(1, dtype=np.float32), 1)
    with pytest.raises(ValueError, match="already"):
        spool.put("a", np.ones(1, dtype=np.float32), 1)


def test_what_an_interrupted_server_left_is_gone(tmp_path: Path) -> None:
    Spool(tmp_path, 0).put("a", np.zeros(1, dtype=np.float32), 1)
    assert Spool(tmp_path, 0).updates(SPEC) == []
    spool = Spool(tmp_path, 1)
    spool.put("a", np.zeros(1, dtype=np.float32), 1)
    spool.remove()
    assert list(tmp_path.iterdir()) == []
