"""Which directory a SuperNode serves."""

from pathlib import Path

import pytest

from fedpref.config import load_config
from fedpref.errors import ConfigError
from fedpref.federation.site_place import label, locate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(f'name = "{name}"\n')
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_partition_k_is_directory_k(folder: Path) -> None:
    config = load_config({"sites": str(folder)})
    names = [
        locate(config, {"partition-id": k, "num-partitions": 2}).path.name for k in range(2)
    ]  # the third directory stays unused
    assert names == ["a", "b"]


def test_the_hospital_names_its_directory(folder: Path) -> None:
    config = load_config({"sites": "/does/not/exist"})
    place = locate(config, {"site-dir": str(folder / "c"), "partition-id": 0, "num-partitions": 2})
    assert (place.path, place.partition, place.partitions) == (folder / "c", 0, 2)


def test_more_super_nodes_than_directories_are_refused(folder: Path) -> None:
    config = load_config({"sites": str(folder)})
    with pytest.raises(ConfigError, match="4 SuperNodes and only 3 site directories"):
        locate(config, {"partition-id": 3, "num-partitions": 4})


def test_a_missing_folder_and_a_nameless_node_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        locate(load_config({"sites": str(tmp_path / "x")}), {"partition-id": 0})
    with pytest.raises(ConfigError, match="names no site"):
        locate(load_config({}), {})


def test_labels() -> None:
    assert label({"site-dir": "/data/mercy"}) == "mercy"
    assert label({"partition-id": 3}) == "partition-3"
    assert label({}) == "partition-unknown"
