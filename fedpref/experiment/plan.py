"""Which runs an experiment consists of, and the record that makes it one experiment.

All arms see the same sites and pairs: FedPref averages, Local leaves every site to itself (with the
very same content-addressed roots), Central is a federation of one site that holds the union.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fedpref import __version__
from fedpref.config import RunConfig, load_config
from fedpref.data import SiteDirectory, site_directories, write_pool
from fedpref.demo import DEMO_MODEL, DEMO_MODEL_FOLDER
from fedpref.errors import ConfigError, DataError, FedPrefError, ResumeError, raise_all
from fedpref.federation.strategies import LOCAL
from fedpref.files import atomic_write, read_jsonl
from fedpref.hashing import digest, digest_file
from fedpref.preference.dataset import pairs_digest, pool_pairs, read_pairs
from fedpref.task import ONTOLOGY, Ontology, load_ontology

Arm = Literal["fedpref", "local", "central"]
ARMS: Final[tuple[Arm, ...]] = get_args(Arm)
CENTRAL: Final = "central"
PLAN_FILE: Final = "experiment.json"


@dataclass(frozen=True)
class Job:
    """One run of the app: an arm with a training seed, and how many SuperNodes it takes."""

    arm: Arm
    seed: int
    config: RunConfig
    nodes: int

    @property
    def run_dir(self) -> Path:
        """Return the directory of the run."""
        return Path(self.config.runs_dir) / self.config.run_id

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the run's closed rounds."""
        return [row for _, row in read_jsonl(self.run_dir / "rounds.jsonl")]


@dataclass(frozen=True)
class Experiment:
    """Sites, seeds and configuration of a comparison, and the folder in which it takes place."""

    folder: Path
    config: RunConfig
    seeds: tuple[int, ...]
    sites: tuple[SiteDirectory, ...]

    @property
    def central_folder(self) -> Path:
        """Return the folder whose only site directory is the union."""
        return self.folder / "central"

    @property
    def central(self) -> SiteDirectory:
        """Return the union of the sites."""
        return SiteDirectory.load(self.central_folder / CENTRAL, self.sites[0].ontology)

    def jobs(self) -> list[Job]:
        """Return every run, seed by seed; FedPref comes first: Local takes over its roots."""
        return [self._job(arm, seed) for seed in self.seeds for arm in ARMS]

    def _job(self, arm: Arm, seed: int) -> Job:
        config = self.config
        changes: dict[str, Any] = {
            "seed": seed,
            "runs_dir": str(self.folder / "runs"),
            "run_id": f"{arm}-{seed}",
            "resume": "",
        }
        if arm == "local":
            changes |= {"strategy": LOCAL, "strategy_options": ""}
        if arm == "central":
            # As many pairs an optimiser step as all sites take together in one.
            together = config.training.accumulation * len(self.sites)
            changes |= {
                "sites": str(self.central_folder),
                "strategy": "pair-fedavg",
                "strategy_options": "",
                "min_sites": 0,
                "quorum": 0,
                "training": config.training.model_copy(update={"accumulation": together}),
            }
        nodes = 1 if arm == "central" else len(self.sites)
        return Job(arm, seed, config.model_copy(update=changes), nodes)


def experiment_id(config: RunConfig, seeds: Sequence[int]) -> str:
    """Return a name that is the same for the same configuration, seeds and folder of sites."""
    where = [str(Path(config.sites).resolve()), config.federation, config.ontology]
    key = digest([config.numeric(), sorted(seeds), where, _model(config), __version__])
    return f"compare-{key[:8]}"


def open_experiment(folder: Path, config: RunConfig, seeds: Sequence[int]) -> Experiment:
    """Return the experiment of a folder, new or begun before, with Central's union written.

    Raises ConfigError, DataError or ResumeError: seeds that repeat, sites without pairs, or, where
    the folder already holds an experiment, everything in which this one differs from it.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError("no seed, or one seed twice", fix="give each seed once", key="seeds")
    for seed in seeds:
        load_config(config.to_flat() | {"seed": seed})
    if config.strategy == LOCAL:
        raise ConfigError(
            "the strategy of a comparison is that of its federated arm",
            fix=f"choose another strategy than {LOCAL!r}; the arm Local is always run",
            key="strategy",
        )
    ontology = load_ontology(Path(config.ontology)) if config.ontology else ONTOLOGY
    sites = _sites(Path(config.sites), ontology)
    experiment = Experiment(folder, config, tuple(seeds), sites)
    plan = _plan(experiment)
    path = folder / PLAN_FILE
    if path.exists():
        _check_same(path, plan)
    else:
        pool = write_pool(experiment.central_folder / CENTRAL, sites, name=CENTRAL)
        pool_pairs(pool, sites)
        atomic_write(path, json.dumps(plan, indent=2) + "\n")
    _check_union(experiment)
    return experiment


def _sites(folder: Path, ontology: Ontology) -> tuple[SiteDirectory, ...]:
    paths = site_directories(folder)
    if len(paths) < 2:
        raise ConfigError(
            f"{len(paths)} site directories are in {folder}",
            why="arms are compared over a federation of several sites",
            fix="name a folder with two site directories or more",
            key="sites",
        )
    problems: list[FedPrefError] = []
    sites: list[SiteDirectory] = []
    for path in paths:
        try:
            sites.append(SiteDirectory.load(path, ontology))
        except FedPrefError as error:
            problems.append(error)
    if sites and not problems and not any(site.split("dev") for site in sites):
        problems.append(
            DataError(
                "no site has a development report",
                why="arms are compared, and the round is selected, on development reports",
                fix='give reports the split "dev"',
                file=folder,
            )
        )
    raise_all(problems)
    return tuple(sites)


def _plan(experiment: Experiment) -> dict[str, Any]:
    """Return what must be the same for the runs of one experiment, as a JSON value."""
    values = experiment.config.numeric()
    return {
        "fedpref": __version__,
        "seeds": list(experiment.seeds),
        # The seed of a run is one of `seeds`.
        "config": {key: value for key, value in values.items() if key != "seed"},
        "federation": experiment.config.federation,
        "ontology": experiment.sites[0].ontology.digest,
        "model": _model(experiment.config),
        "sites": {site.name: _contents(site) for site in experiment.sites},
    }


def _model(config: RunConfig) -> dict[str, str]:
    """Return the name of the base model and, if it is a folder, the hash of its files."""
    name = config.model.path
    folder = DEMO_MODEL_FOLDER if name == DEMO_MODEL else Path(name)
    files = sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    return {"name": name, "files": digest([[path.name, digest_file(path)] for path in files])}


def _contents(site: SiteDirectory) -> dict[str, str]:
    """Return the hashes of what a site trains on and is measured on."""
    annotations = [site.annotations[report.report_id].to_row() for report in site.reports]
    return {
        "pairs": pairs_digest(read_pairs(site)),
        "reports": digest([report.to_row() for report in site.reports]),
        "annotations": digest(annotations),
    }


def _check_same(path: Path, plan: Mapping[str, Any]) -> None:
    before: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    old, new = dict(_leaves(before)), dict(_leaves(plan))
    raise_all(
        [
            ResumeError(
                f"was {_short(old.get(key))} when the experiment began, is {_short(new.get(key))} "
                "now",
                fix="set it back, or compare into another folder",
                file=path,
                key=key,
            )
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]
    )


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, item in value.items():
        leaves += (
            _leaves(item, f"{prefix}{key}.")
            if isinstance(item, Mapping)
            else [(prefix + key, item)]
        )
    return leaves


def _short(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _check_union(experiment: Experiment) -> None:
    """Raise unless Central holds exactly the sites' pairs."""
    own = _pairs(experiment.sites)
    union = _pairs([experiment.central])
    if own != union:
        raise DataError(
            f"the arms have different pairs: {digest(own)[:12]} at the sites, "
            f"{digest(union)[:12]} in their union",
            fix="compare into another folder",
            file=experiment.central.pairs_path,
        )


def _pairs(sites: Sequence[SiteDirectory]) -> list[list[str]]:
    # With the report: equal texts with equal answers share a pair id.
    return sorted(
        [pair.report_id, pair.split, pair.pair_id] for site in sites for pair in read_pairs(site)
    )
