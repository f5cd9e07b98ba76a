"""Which runs an experiment consists of, and the record that makes it one experiment.

All arms see the same sites and pairs: FedPref averages, Local leaves every site to itself (with the
very same content-addressed roots), Central is a federation of one site that holds the union. When
strategies are compared, each is an arm that averages the same roots in its own way.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fedpref import __version__
from fedpref.config import RunConfig, load_config
from fedpref.data import SiteDirectory, site_directories, write_pool
from fedpref.demo import DEMO_MODEL, DEMO_MODEL_FOLDER
from fedpref.errors import (
    ConfigError,
    DataError,
    FedPrefError,
    ResumeError,
    collected,
    raise_all,
)
from fedpref.experiment.arms import CENTRAL, Arm, matched_arms
from fedpref.federation.participation import check_site_count
from fedpref.federation.strategies import check_enough_sites, make_strategy
from fedpref.files import atomic_write, read_jsonl
from fedpref.hashing import digest, digest_file
from fedpref.preference.dataset import PreferencePair, pairs_digest, pool_pairs, read_pairs
from fedpref.task import Ontology, ontology_of

PLAN_FILE: Final = "experiment.json"

Pairs = Mapping[str, Sequence[PreferencePair]]


@dataclass(frozen=True)
class Job:
    """One run of the app: an arm with a training seed, and how many SuperNodes it takes.

    `pooled`: it runs over the union of the sites.
    """

    arm: str
    seed: int
    config: RunConfig
    nodes: int
    pooled: bool = False

    @property
    def run_dir(self) -> Path:
        """Return the directory of the run."""
        return Path(self.config.runs_dir) / self.config.run_id

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the run's closed rounds."""
        return [row for _, row in read_jsonl(self.run_dir / "rounds.jsonl")]


@dataclass(frozen=True)
class Experiment:
    """Sites, seeds, arms and configuration of a comparison, and the folder in which it is."""

    folder: Path
    config: RunConfig
    seeds: tuple[int, ...]
    sites: tuple[SiteDirectory, ...]
    arms: tuple[Arm, ...]

    @property
    def central_folder(self) -> Path:
        """Return the folder whose only site directory is the union."""
        return self.folder / CENTRAL

    @property
    def central(self) -> SiteDirectory:
        """Return the union of the sites."""
        return SiteDirectory.load(self.central_folder / CENTRAL, self.sites[0].ontology)

    @property
    def pooled(self) -> bool:
        """Return whether an arm needs the union."""
        return any(arm.pooled for arm in self.arms)

    @property
    def matched(self) -> bool:
        """Return whether the arms are FedPref, Local and Central, and not strategies."""
        return self.arms == matched_arms(self.config)

    def jobs(self) -> list[Job]:
        """Return every run, seed by seed; the first arm trains the roots that others take over."""
        return [self._job(arm, seed) for seed in self.seeds for arm in self.arms]

    def _job(self, arm: Arm, seed: int) -> Job:
        config = arm.of(self.config)
        changes: dict[str, Any] = {
            "seed": seed,
            "runs_dir": str(self.folder / "runs"),
            "run_id": f"{arm.folder}-{seed}",
            "resume": "",
        }
        if arm.pooled:
            # As many pairs an optimiser step as all sites take together in one.
            together = config.training.accumulation * len(self.sites)
            changes |= {
                "sites": str(self.central_folder),
                "min_sites": 0,
                "quorum": 0,
                "training": config.training.model_copy(update={"accumulation": together}),
            }
        nodes = 1 if arm.pooled else len(self.sites)
        return Job(arm.name, seed, config.model_copy(update=changes), nodes, arm.pooled)


@dataclass(frozen=True)
class Opening:
    """An experiment that has been checked and may begin: its plan, and the sites' pairs."""

    experiment: Experiment
    plan: Mapping[str, Any]
    pairs: Pairs

    def begin(self) -> Experiment:
        """Return the experiment, with plan and union written if its folder is new.

        Raises DataError if the union that a begun one has does not hold the sites' pairs.
        """
        experiment = self.experiment
        path = experiment.folder / PLAN_FILE
        if not path.exists():
            if experiment.pooled:
                place = experiment.central_folder / CENTRAL
                pool_pairs(write_pool(place, experiment.sites, name=CENTRAL), self.pairs)
            atomic_write(path, json.dumps(self.plan, indent=2) + "\n")
        if experiment.pooled:
            _check_union(experiment, self.pairs)
        return experiment


def experiment_id(
    config: RunConfig,
    seeds: Sequence[int],
    *,
    arms: Sequence[Arm],
    model: Mapping[str, str],
    folders: Sequence[Path],
) -> str:
    """Return a name that is the same for the same configuration, seeds, arms and site folders.

    `model` is what `model_identity` says of the base model.
    """
    where = [*(str(folder.resolve()) for folder in folders), config.federation, config.ontology]
    named: list[Any] = [config.numeric(), sorted(seeds), where, dict(model), __version__]
    if matched_arms(config) != tuple(arms):
        named.append(_told(arms))
    return f"compare-{digest(named)[:8]}"


def open_experiment(
    folder: Path,
    config: RunConfig,
    seeds: Sequence[int],
    *,
    arms: Sequence[Arm] | None = None,
    model: Mapping[str, str] | None = None,
) -> Opening:
    """Return the experiment of a folder, new or begun before, checked; nothing is written yet.

    Without `arms` they are FedPref, Local and Central. `model` is `model_identity` of the config,
    if it is known already. Raises ConfigError, DataError or ResumeError: seeds that repeat, sites
    without pairs, too few sites for a strategy, quorum or min-sites, a fraction of them a round,
    or, where the folder already holds an experiment, everything in which this one differs from it.
    """
    check_seeds(config, seeds)
    _check_everyone_trains(config)
    chosen = matched_arms(config) if arms is None else tuple(arms)
    ontology = ontology_of(config.ontology)
    sites = _sites(Path(config.sites), ontology)
    pairs = {site.name: read_pairs(site) for site in sites}
    experiment = Experiment(folder, config, tuple(sorted(seeds)), sites, chosen)
    _check_enough_sites(experiment, pairs)
    plan = _plan(experiment, pairs, model_identity(config) if model is None else model)
    path = folder / PLAN_FILE
    if path.exists():
        _check_same(path, plan)
    return Opening(experiment, plan, pairs)


def check_seeds(config: RunConfig, seeds: Sequence[int]) -> None:
    """Raise ConfigError for no seed, a seed twice, or one that a run cannot have."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError("no seed, or one seed twice", fix="give each seed once", key="seeds")
    for seed in seeds:
        load_config(config.to_flat() | {"seed": seed})


def _check_everyone_trains(config: RunConfig) -> None:
    if config.fraction < 1:
        raise ConfigError(
            f"{config.fraction:g} was given",
            why="every pair has the same exposure in each arm, so that all sites train each round",
            fix="use 1 in a comparison; `fedpref run` takes a fraction",
            key="fraction",
        )


def model_identity(config: RunConfig) -> dict[str, str]:
    """Return the name of the base model and, if it is a folder, the hash of its files.

    Reads all of them: 16 GB for a model of 8 billion parameters.
    """
    name = config.model.path
    folder = DEMO_MODEL_FOLDER if name == DEMO_MODEL else Path(name)
    files = sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    return {"name": name, "files": digest([[path.name, digest_file(path)] for path in files])}


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
            site = SiteDirectory.load(path, ontology)
        except FedPrefError as error:
            problems.append(error)
            continue
        if other := next((one for one in sites if one.name == site.name), None):
            problems.append(
                DataError(
                    "two sites have this name",
                    why=f"the other one is {other.path}",
                    fix="give every site.toml a name of its own",
                    file=path,
                    site=site.name,
                )
            )
        sites.append(site)
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


def _check_enough_sites(experiment: Experiment, pairs: Pairs) -> None:
    """Raise, for all arms at once, if a strategy needs more sites than there are."""
    with_pairs = sum(any(pair.split == "train" for pair in own) for own in pairs.values())
    sites, problems = len(experiment.sites), list[FedPrefError]()
    collected(problems, lambda: check_site_count(experiment.config, sites))

    def check(config: RunConfig) -> None:
        check_enough_sites(config, make_strategy(config), sites=sites, with_pairs=with_pairs)

    for arm in experiment.arms:
        if not arm.pooled:
            collected(problems, partial(check, arm.of(experiment.config)))
    # Of several partitions, one may be too small.
    folder = experiment.config.sites
    raise_all([ConfigError(e.what, why=e.why, fix=e.fix, file=folder) for e in problems])


def _plan(experiment: Experiment, pairs: Pairs, model: Mapping[str, str]) -> dict[str, Any]:
    """Return what must be the same for the runs of one experiment, as a JSON value."""
    values = experiment.config.numeric()
    plan: dict[str, Any] = {
        "fedpref": __version__,
        "seeds": list(experiment.seeds),
        # The seed of a run is one of `seeds`.
        "config": {key: value for key, value in values.items() if key != "seed"},
        "federation": experiment.config.federation,
        "ontology": experiment.sites[0].ontology.digest,
        "model": dict(model),
        "sites": {site.name: _contents(site, pairs[site.name]) for site in experiment.sites},
    }
    # The paper's three arms are what the configuration says.
    return plan if experiment.matched else plan | {"strategies": _told(experiment.arms)}


def _told(arms: Sequence[Arm]) -> list[str]:
    return [f"{arm.strategy}({arm.options})" for arm in arms]


def _contents(site: SiteDirectory, pairs: Sequence[PreferencePair]) -> dict[str, str]:
    """Return the hashes of what a site trains on and is measured on."""
    annotations = [site.annotations[report.report_id].to_row() for report in site.reports]
    return {
        "pairs": pairs_digest(pairs),
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


def _check_union(experiment: Experiment, pairs: Pairs) -> None:
    """Raise unless Central holds exactly the sites' pairs."""
    central = experiment.central
    own, union = _sorted(pairs), _sorted({CENTRAL: read_pairs(central)})
    if own != union:
        raise DataError(
            f"the arms have different pairs: {digest(own)[:12]} at the sites, "
            f"{digest(union)[:12]} in their union",
            fix="compare into another folder",
            file=central.pairs_path,
        )


def _sorted(pairs: Pairs) -> list[list[str]]:
    # With the report: equal texts with equal answers share a pair id.
    return sorted([p.report_id, p.split, p.pair_id] for own in pairs.values() for p in own)
