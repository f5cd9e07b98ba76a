"""What a site computes: SFT, DPO and the evaluation on its own data. Imports torch when opened."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from fedpref import __version__
from fedpref.adapter_state import AdapterSpec, AdapterState, state_digest
from fedpref.config import RunConfig
from fedpref.data import SiteDirectory
from fedpref.errors import TrainingError, of_site
from fedpref.evaluation.extraction import encode_reports
from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.evaluation.predictions import predictions_path
from fedpref.evaluation.site_evaluation import evaluate_site
from fedpref.preference.dataset import PreferencePair, pairs_digest, read_pairs
from fedpref.task import Ontology, ontology_of
from fedpref.task.prompt import prompt_digest
from fedpref.training.adapter import make_spec
from fedpref.training.adjustment import AS_USUAL, Adjustment
from fedpref.training.base_model import load_base_model
from fedpref.training.dpo import train_dpo
from fedpref.training.encoding import EncodedPair, encode_pairs
from fedpref.training.reference import reference_logps
from fedpref.training.roots import load_root, root_key, store_root
from fedpref.training.sft import train_sft
from fedpref.training.trained import Trained

_LIBRARIES = ("flwr", "numpy", "peft", "torch", "transformers", "trl")


class LocalSite:
    """A site directory with the run's base model; a `SiteWork` for `SiteWorker`.

    Raises DataError, ModelError or ConfigError with all problems of the directory, the model or the
    pairs, so that a site that cannot train says so in the handshake.
    """

    def __init__(self, config: RunConfig, path: Path) -> None:
        self.config = config
        self.ontology = ontology_of(config.ontology)
        self.site = _load(path, self.ontology)
        self.base = load_base_model(
            config.model.path,
            dtype=config.model.dtype,
            device=config.model.device,
            threads=config.training.threads,
        )
        self.spec: AdapterSpec = make_spec(self.base, config.lora)
        self._pairs = tuple(read_pairs(self.site, ontology=self.ontology))
        self._train = self._encode("train")

    @property
    def name(self) -> str:
        """The site's name, from site.toml."""
        return self.site.name

    @property
    def base_name(self) -> str:
        """The configured name of the base model."""
        return self.config.model.path

    @property
    def state_dir(self) -> Path:
        """`state/<federation>/` of the site directory."""
        return Path(self.site.state_dir(self.config.federation))

    @property
    def pair_count(self) -> int:
        """The pairs that SFT and DPO train on, over-long ones left out if the run drops them."""
        return len(self._train)

    @property
    def dev_reports(self) -> int | None:
        """The development reports, None below the policy's minimum cell size."""
        count = len(self.site.split("dev"))
        return None if 0 < count < self.site.policy.min_cell_size else count

    @property
    def synthetic(self) -> bool:
        """Whether site.toml marks the reports as invented."""
        return self.site.info.synthetic

    def check(self) -> None:
        """Raise DataError for development reports or pairs that no evaluation could take."""
        if self.dev_reports is None:
            return
        self._encode("dev")
        with of_site(self.name):
            encode_reports(
                self.base,
                self.site.split("dev"),
                prompt_style=self.config.prompt.style,
                ontology=self.ontology,
                settings=self.config.evaluation,
            )

    def hashes(self) -> Mapping[str, str]:
        """Return what must be equal at all sites."""
        return {
            "weights": self.base.weights_digest,
            "tokenizer": self.base.tokenizer_digest,
            "prompt": prompt_digest(self.config.prompt.style, self.ontology),
            "ontology": self.ontology.digest,
        }

    def versions(self) -> Mapping[str, str]:
        """Return library versions without their local part: "2.13.0+cpu" is "2.13.0"."""
        found = {library: version(library).partition("+")[0] for library in _LIBRARIES}
        return {"fedpref": __version__, **found}

    def train(
        self,
        round_: int,
        start: AdapterState,
        root: AdapterState | None,
        adjustment: Adjustment = AS_USUAL,
    ) -> Trained | None:
        """Return SFT (round 0) or DPO (later) from `start`; None for a site without pairs.

        Raises TrainingError for a loss asked over fewer pairs than the policy's minimum cell size.
        """
        if not self._train:
            return None
        smallest = self.site.policy.min_cell_size
        if adjustment.report_loss and self.pair_count < smallest:
            raise TrainingError(
                f"the strategy asks for the loss over fewer than {smallest} pairs",
                why="the site's policy (min_cell_size) lets no mean over so few out",
                fix="choose a strategy that needs no loss, or run with a quorum",
            )
        if round_ == 0:
            return self._sft(start, adjustment)
        if root is None:
            raise TrainingError(f"round {round_} needs the root of round 0 as its reference")
        reference = reference_logps(
            self.base,
            self.spec,
            root,
            self._train,
            self.config.training,
            self.state_dir / "references",
        )
        return train_dpo(
            self.base,
            self.spec,
            start,
            self._train,
            reference,
            self.config.training,
            seed=self.config.seed,
            adjustment=adjustment,
        )

    def evaluate(self, round_: int, adapter: AdapterState) -> EvaluationCounts | None:
        """Return the development counts; None below the policy's minimum cell size.

        The answers, report by report, stay in `predictions/` of the federation's state.
        """
        if self.dev_reports is None:
            return None
        smallest = self.site.policy.min_cell_size
        pairs = self._encode("dev")
        counts = evaluate_site(
            self.base,
            self.spec,
            adapter,
            self.site,
            pairs if len(pairs) >= smallest else [],
            prompt_style=self.config.prompt.style,
            ontology=self.ontology,
            settings=self.config.evaluation,
            training=self.config.training,
            predictions=predictions_path(
                self.state_dir, self.config, round_, state_digest(adapter)
            ),
        )
        # Preference accuracy and false positives have cells of their own.
        if counts.empty_targets < smallest:
            counts = replace(counts, empty_targets=0, empty_with_prediction=0)
        return counts

    def _sft(self, start: AdapterState, adjustment: Adjustment) -> Trained | None:
        config = self.config
        key = root_key(
            weights_digest=self.base.weights_digest,
            tokenizer_digest=self.base.tokenizer_digest,
            prompt_digest=prompt_digest(config.prompt.style, self.ontology),
            pairs_digest=pairs_digest(self._of("train")),
            initial_digest=state_digest(start),
            spec=self.spec,
            settings=config.training,
            dtype=self.base.dtype,
            device_type=self.base.device_type,
            seed=config.seed,
            adjustment=adjustment,
        )
        roots = self.state_dir / "roots"
        trained = load_root(roots, key, self.spec)
        if trained is None:
            trained = train_sft(
                self.base,
                self.spec,
                start,
                self._train,
                config.training,
                seed=config.seed,
                adjustment=adjustment,
            )
            if trained is not None:
                store_root(roots, key, self.spec, trained, self.base_name)
        return trained

    def _of(self, split: str) -> list[PreferencePair]:
        return [pair for pair in self._pairs if pair.split == split]

    def _encode(self, split: str) -> list[EncodedPair]:
        with of_site(self.name):
            encoded, _ = encode_pairs(
                self.base,
                self._of(split),
                {report.report_id: report.text for report in self.site.reports},
                prompt_style=self.config.prompt.style,
                ontology=self.ontology,
                max_length=self.config.training.max_length,
                on_too_long=self.config.training.on_too_long,
            )
        return encoded


def _load(path: Path, ontology: Ontology) -> SiteDirectory:
    """Return the site; an error that names no site gets the directory's name."""
    with of_site(path.name):
        return SiteDirectory.load(path, ontology)
