"""The spool: sorted by site, whatever the order of arrival; nothing stays."""

from pathlib import Path

import numpy as np
import pytest

from fedpref.federation.spool import Spool


def test_updates_come_back_in_site_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 2)
    for site, value in (("c", 3), ("a", 1), ("b", 2)):
        spool.put(site, np.full(4, value, dtype=np.float32), value * 10)
    found = [(site, flat.tolist(), count) for site, flat, count in spool]
    assert found == [("a", [1] * 4, 10), ("b", [2] * 4, 20), ("c", [3] * 4, 30)]
    assert list(spool.pair_counts) == ["a", "b", "c"]


def test_a_site_has_one_update_a_round(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0)
    spool.put("a", np.zeros(1, dtype=np.float32), 1)
    with pytest.raises(ValueError, match="already"):
        spool.put("a", np.ones(1, dtype=np.float32), 1)


def test_what_an_interrupted_server_left_is_gone(tmp_path: Path) -> None:
    Spool(tmp_path, 0).put("a", np.zeros(1, dtype=np.float32), 1)
    assert list(Spool(tmp_path, 0)) == []
    spool = Spool(tmp_path, 1)
    spool.put("a", np.zeros(1, dtype=np.float32), 1)
    spool.remove()
    assert list(tmp_path.iterdir()) == []
