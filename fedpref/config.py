"""The run configuration: Flower's flat run config → one frozen, checked `RunConfig`.

Every key that `[tool.flwr.app.config]` in `pyproject.toml` lists is a field here, in kebab-case
with dots (`training.sft-learning-rate`), with the same default. Flower's values are bool, int,
float and str only, so that a list is written as one string ("q_proj,k_proj"). Flower checks neither
types nor ranges; `load_config` checks everything and reports all problems at once.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedpref.errors import ConfigError, FedPrefError, raise_all
from fedpref.hashing import digest
from fedpref.inline_options import read_options

# Not part of the digest: where things lie, what a run is called, and how long or for whom the
# coordinator waits. None of them changes a number of a run in which every site answers; the base
# model and the ontology are compared by content in the handshake instead of by path.
_NOT_IN_DIGEST = frozenset(
    {
        "federation",
        "sites",
        "runs-dir",
        "run-id",
        "resume",
        "effect",
        "model.path",
        "ontology",
        "min-sites",
        "quorum",
        "join-deadline",
        "round-deadline",
        "message-ttl",
    }
)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _split_names(value: object) -> object:
    """Read "a, b" as ("a", "b"): a run config holds no lists."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class Settings(BaseModel):
    """Base of all parts of the configuration: frozen, strict about types, kebab-case keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        populate_by_name=True,
        alias_generator=AliasGenerator(alias=_kebab),
        protected_namespaces=(),
    )


class ModelSettings(Settings):
    """The frozen base model: "demo" (bundled), a folder or a hub name; precision and device."""

    path: str = Field(default="demo", min_length=1)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")


class PromptSettings(Settings):
    """The prompt: "full" states every rule, "compact" is the same task for small models."""

    style: Literal["full", "compact"] = "compact"


class LoraSettings(Settings):
    """The adapter: rank, alpha, scaling and the linear layers it sits on; dropout is 0."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    rslora: bool = False
    targets: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
    )


class TrainingSettings(Settings):
    """How a site trains; one epoch a round, `accumulation` pairs an optimiser step.

    The engine "tree" computes what the pairs of a step share once, in trees of at most
    `max_tree_tokens` (a pair that needs more has one of its own); "trl" is TRL's own forward, pair
    by pair. Both give the same numbers but for rounding.
    """

    engine: Literal["tree", "trl"] = "tree"
    max_tree_tokens: int = Field(default=4096, ge=1)

    sft_learning_rate: float = Field(default=2e-3, gt=0)
    dpo_learning_rate: float = Field(default=2e-4, gt=0)
    beta: float = Field(default=0.1, gt=0)
    accumulation: int = Field(default=4, ge=1)
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    max_length: int = Field(default=2048, ge=16)
    on_too_long: Literal["error", "drop"] = "error"
    gradient_checkpointing: bool = False
    threads: int = Field(default=1, ge=1)


class EvaluationSettings(Settings):
    """How a site evaluates: greedy extraction in batches, at most `max_new_tokens` a report."""

    batch_size: int = Field(default=32, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)


class GuardSettings(Settings):
    """What makes the coordinator leave an update out.

    `norm_multiple`: an update that moved more than this many times the median of the round's
    updates is refused; 0 turns the comparison off.
    """

    norm_multiple: float = Field(default=10.0, ge=0)


class RunConfig(Settings):
    """The whole effective configuration of one run.

    `strategy` is a name that `fedpref strategies` lists or the dotted path of a class, with keyword
    arguments in `strategy_options`. Whether they exist is checked where the run starts
    (`federation.strategies.make_strategy`): sites read this too, and import no strategy. With
    `effect = "A - B"` nothing is trained: the sites are asked for the effect between finished runs
    (`federation.effect_runs.read_arms`).
    """

    federation: str = Field(default="demo", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    sites: str = Field(default="demo", min_length=1)
    runs_dir: str = Field(default="runs", min_length=1)
    run_id: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")
    resume: str = ""
    effect: str = ""
    seed: int = Field(default=20260713, ge=0, lt=2**63)
    rounds: int = Field(default=3, ge=0)
    ontology: str = ""
    strategy: str = Field(default="pair-fedavg", pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]*$")
    strategy_options: str = ""
    wire: Literal["float32", "bfloat16", "int8", "int4"] = "float32"
    fraction: float = Field(default=1.0, gt=0, le=1)
    min_sites: int = Field(default=0, ge=0)
    quorum: int = Field(default=0, ge=0)
    join_deadline: float = Field(default=300.0, gt=0)
    round_deadline: float = Field(default=14400.0, gt=0)
    message_ttl: float = Field(default=43200.0, gt=0)
    model: ModelSettings = ModelSettings()
    prompt: PromptSettings = PromptSettings()
    lora: LoraSettings = LoraSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    guards: GuardSettings = GuardSettings()

    def to_flat(self) -> dict[str, bool | int | float | str]:
        """Return the dotted keys and values as a Flower run config holds them, sorted by key."""
        return dict(sorted(_flatten(self)))

    def numeric(self) -> dict[str, bool | int | float | str]:
        """Return the part of `to_flat` that can change a number of the run."""
        # Of a fraction of the sites at least a quorum is asked: there it decides who trains.
        left_out = _NOT_IN_DIGEST - ({"quorum"} if self.fraction < 1 else set())
        return {k: v for k, v in self.to_flat().items() if k not in left_out}

    @property
    def digest(self) -> str:
        """SHA-256 of `numeric`: two runs with equal digests and data give equal adapters."""
        return digest(self.numeric())

    def tree(self) -> str:
        """Return the effective configuration as a small tree, one key a line."""
        flat = self.to_flat()
        lines, group = [], ""
        for key in sorted(flat, key=lambda k: ("." in k, k)):
            head, _, tail = key.rpartition(".")
            if head != group:
                lines.append(f"├── {head}")
                group = head
            prefix = "│   ├── " if head else "├── "
            lines.append(f"{prefix}{tail} = {flat[key]!r}")
        return "\n".join(lines)


def load_config(run_config: Mapping[str, bool | int | float | str]) -> RunConfig:
    """Return the checked configuration; keys that are not given take their defaults.

    Raises ConfigError, or FedPrefErrors with one ConfigError a problem: unknown keys (with the
    nearest valid key), wrong types, values out of range, and values that contradict each other.
    """
    defaults = RunConfig().to_flat()
    problems: list[FedPrefError] = [
        _unknown_key(key, defaults) for key in run_config if key not in defaults
    ]
    known = {k: v for k, v in run_config.items() if k in defaults}
    try:
        config = RunConfig.model_validate(_nest({**defaults, **known}))
    except ValidationError as error:
        bad = {_key_of(dict(item)): dict(item) for item in error.errors(include_url=False)}
        problems += [_bad_value(key, item, known) for key, item in bad.items()]
        # The values that are right in themselves may still contradict each other.
        rest = {key: value for key, value in known.items() if key not in bad}
        config = RunConfig.model_validate(_nest({**defaults, **rest}))
    raise_all([*problems, *_contradictions(config)])
    return config


def _flatten(
    settings: Settings, prefix: str = ""
) -> Iterator[tuple[str, bool | int | float | str]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        key = prefix + _kebab(name)
        if isinstance(value, Settings):
            yield from _flatten(value, key + ".")
        else:
            yield key, ",".join(value) if isinstance(value, tuple) else value


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        head, _, tail = key.rpartition(".")
        (nested.setdefault(head, {}) if head else nested)[tail] = value
    return nested


def _unknown_key(key: str, valid: Mapping[str, Any]) -> ConfigError:
    # An underscore or a missing section is the usual slip: compare the last part as well.
    near = difflib.get_close_matches(key.replace("_", "-"), valid, n=1, cutoff=0.5) or [
        name for name in valid if name.rpartition(".")[2] == _kebab(key.rpartition(".")[2])
    ]
    fix = f"did you mean {near[0]!r}?" if near else "remove it"
    return ConfigError("unknown key", key=key, fix=fix)


def _key_of(item: dict[str, Any]) -> str:
    return ".".join(str(part) for part in item["loc"] if not isinstance(part, int))


def _bad_value(key: str, item: dict[str, Any], given: Mapping[str, Any]) -> ConfigError:
    """Translate one of pydantic's errors; a configuration value is no secret and is named."""
    value = f"{given[key]!r} was given"
    kind, context = item["type"], item.get("ctx", {})
    hints = {
        "literal_error": f"use one of {context.get('expected')}",
        "string_pattern_mismatch": f"use a value that matches {context.get('pattern')}",
        "greater_than": f"use a value > {context.get('gt')}",
        "greater_than_equal": f"use a value ≥ {context.get('ge')}",
        "less_than": f"use a value < {context.get('lt')}",
        "less_than_equal": f"use a value ≤ {context.get('le')}",
        "too_short": "name at least one, separated by commas",
        "string_too_short": "give a value",
        "finite_number": "use a finite number",
        "int_type": "use a whole number",
        "float_type": "use a number",
        "bool_type": "use true or false",
        "string_type": "use a quoted string",
    }
    return ConfigError(value, key=key, fix=hints.get(kind, str(item["msg"])))


def _contradictions(config: RunConfig) -> list[FedPrefError]:
    problems: list[FedPrefError] = []
    if config.round_deadline > config.message_ttl:
        problems.append(
            ConfigError(
                f"round-deadline = {config.round_deadline:g} s is longer than "
                f"message-ttl = {config.message_ttl:g} s",
                why="the messages of a round would expire before the round may close",
                fix="raise message-ttl or lower round-deadline",
                key="round-deadline",
            )
        )
    if config.min_sites and config.quorum > config.min_sites:
        problems.append(
            ConfigError(
                f"quorum = {config.quorum} is larger than min-sites = {config.min_sites}",
                why="a run could start with too few sites to ever close a round",
                fix="lower quorum or raise min-sites",
                key="quorum",
            )
        )
    if 0 < config.guards.norm_multiple < 1:
        problems.append(
            ConfigError(
                f"{config.guards.norm_multiple:g} was given",
                why="at least half of the updates move as far as their median",
                fix="use a value ≥ 1, or 0 to turn the comparison off",
                key="guards.norm-multiple",
            )
        )
    try:
        read_options(config.strategy_options, key="strategy-options")
    except ConfigError as error:
        problems.append(error)
    duplicates = {t for t in config.lora.targets if config.lora.targets.count(t) > 1}
    if duplicates:
        problems.append(
            ConfigError(
                f"{', '.join(sorted(duplicates))} named more than once",
                fix="name every layer once",
                key="lora.targets",
            )
        )
    return problems
