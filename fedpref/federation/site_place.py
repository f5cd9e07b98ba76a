"""Which site directory a SuperNode serves: that of its node config, or the k-th of a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpref.config import RunConfig
from fedpref.data import site_directories
from fedpref.errors import ConfigError
from fedpref.federation.wire import PARTITION, PARTITIONS

SITE_DIR = "site-dir"

NodeConfig = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class SitePlace:
    """A site directory and, where Flower gives them, its partition and the number of partitions."""

    path: Path
    partition: int
    partitions: int


def label(node_config: NodeConfig) -> str:
    """Return how a SuperNode is called in errors before its site.toml has been read."""
    if SITE_DIR in node_config:
        return Path(str(node_config[SITE_DIR])).name or "unnamed"
    return f"partition-{node_config.get(PARTITION, 'unknown')}"


def partitions_of(node_config: NodeConfig) -> int:
    """Return how many SuperNodes there are, 0 if the SuperNode was not told."""
    return int(node_config.get(PARTITIONS, 0))


def locate(config: RunConfig, node_config: NodeConfig) -> SitePlace:
    """Return the place of the SuperNode's site; raises ConfigError if it has none.

    In a deployment, the hospital names the directory: `--node-config 'site-dir="/data/site"'`. In a
    simulation, partition k is entry k of the folder `sites`; further entries stay unused.
    """
    partition = int(node_config.get(PARTITION, -1))
    partitions = partitions_of(node_config)
    if SITE_DIR in node_config:
        return SitePlace(Path(str(node_config[SITE_DIR])).absolute(), partition, partitions)
    if partition < 0:
        raise ConfigError(
            "the SuperNode names no site",
            fix="start it with --node-config 'site-dir=\"/path/of/the/site\"'",
            key=SITE_DIR,
        )
    folder = _folder(config)
    directories = site_directories(folder)
    if partition >= len(directories):
        raise ConfigError(
            f"there are {partitions} SuperNodes and only {len(directories)} site directories",
            why="partition k is directory k",
            fix="start as many SuperNodes as there are sites, or correct sites",
            key="sites",
        )
    return SitePlace(directories[partition], partition, partitions)


def _folder(config: RunConfig) -> Path:
    if config.sites == "demo":
        from fedpref.demo.sites import ensure_demo_sites  # noqa: PLC0415  (only where it is asked)

        return ensure_demo_sites()
    folder = Path(config.sites)
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {config.sites!r}",
            why="a relative path is looked up where the SuperLink was started",
            fix="give an absolute path to the folder that holds the site directories",
            key="sites",
        )
    return folder
