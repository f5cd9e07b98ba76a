"""Flower's own strategies by name, so that they neither wait nor sample.

Which sites train is the run's `fraction`; the grid that a strategy sees holds just those, and all
of them are asked. Their sums are Flower's, in float32. `save_state` and `load_state` carry what a
server optimiser remembers over a resume.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from fedpref.federation.aggregation.inputs import normalised
from fedpref.federation.wire import ARRAYS, CONFIG, METRICS, NUM_EXAMPLES, TRAIN_LOSS
from fedpref.training.adjustment import REPORT_LOSS

Arrays = dict[str, NDArray[Any]]

# Flower's keyword arguments that the run decides about; no options of a strategy.
EVERYONE: Final[Mapping[str, Any]] = {
    "fraction_train": 1.0,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
    "weighted_by_key": NUM_EXAMPLES,
    "arrayrecord_key": ARRAYS,
    "configrecord_key": CONFIG,
}


def pair_shares(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the weights that Flower's average gives to these updates."""
    counts = [
        float(next(iter(content.metric_records.values()))[weighted_by_key])  # type: ignore[arg-type]
        for content in contents
    ]
    return MetricRecord({"weights": normalised(counts).tolist()})


def no_weights(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return nothing: the strategy gives no site a weight."""
    return MetricRecord()


def _require(what: str, holds: bool) -> None:
    if not holds:
        raise ValueError(what)


class FedMedian(flower.FedMedian):
    """The median of every single value over the sites, whatever their sizes."""

    stateless = True
    sites_needed = 3  # the median of two is their mean

    def __init__(self) -> None:
        super().__init__(**EVERYONE, train_metrics_aggr_fn=no_weights)


class FedTrimmedAvg(flower.FedTrimmedAvg):
    """The mean of every single value without the `beta` largest and smallest shares."""

    stateless = True

    def __init__(self, *, beta: float = 0.2) -> None:
        _require("beta lies above 0 and below 0.5", 0 < beta < 0.5)
        super().__init__(**EVERYONE, train_metrics_aggr_fn=no_weights, beta=beta)

    @property
    def sites_needed(self) -> int:
        """The fewest updates of which Flower's int(beta·K) leaves one out at either end."""
        fewest = math.ceil(1 / self.beta)
        return fewest if int(self.beta * fewest) else fewest + 1


class Krum(flower.Krum):
    """The one update that lies closest to its neighbours; the others are not used."""

    stateless = True

    def __init__(self, *, num_malicious_nodes: int = 0) -> None:
        _require("num_malicious_nodes is ≥ 0", num_malicious_nodes >= 0)
        self._chosen: list[RecordDict] = []
        super().__init__(
            **EVERYONE,
            train_metrics_aggr_fn=self._remember,
            num_malicious_nodes=num_malicious_nodes,
        )

    @property
    def sites_needed(self) -> int:
        """2f + 3 updates: with fewer, Krum promises nothing against f bad ones."""
        return 2 * self.num_malicious_nodes + 3

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the chosen update, with the weight 1 for it and 0 for all others."""
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if metrics is not None:
            metrics["weights"] = [
                float(any(reply.content is chosen for chosen in self._chosen)) for reply in replies
            ]
        self._chosen = []
        return arrays, metrics

    def _remember(self, contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        self._chosen = contents
        return MetricRecord()


class FedProx(flower.FedProx):
    """FedAvg whose sites add mu/2·‖w − w(t)‖² to their loss (`training.adjustment`)."""

    stateless = True

    def __init__(self, *, proximal_mu: float = 0.01) -> None:
        _require("proximal_mu is above 0 (with 0, use pair-fedavg)", proximal_mu > 0)
        super().__init__(**EVERYONE, train_metrics_aggr_fn=pair_shares, proximal_mu=proximal_mu)


class FedAvgM(flower.FedAvgM):
    """FedAvg with momentum on the server."""

    def __init__(self, *, server_learning_rate: float = 1.0, server_momentum: float = 0.9) -> None:
        _require("server_learning_rate is above 0", server_learning_rate > 0)
        _require("server_momentum lies in 0…1, 1 left out", 0 <= server_momentum < 1)
        super().__init__(
            **EVERYONE,
            train_metrics_aggr_fn=pair_shares,
            server_learning_rate=server_learning_rate,
            server_momentum=server_momentum,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start from the adapter of record, which a lossy wire has rounded, not from our own."""
        self.current_arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def save_state(self) -> Arrays:
        """Return the momentum; nothing before the first aggregation."""
        return {f"momentum.{i:06d}": array for i, array in enumerate(self.momentum_vector or [])}

    def load_state(self, state: Arrays) -> None:
        """Go on with the momentum that `save_state` gave."""
        self.momentum_vector = [state[name] for name in sorted(state)] or None


class _Adaptive(FedOpt):
    """What FedAdam and FedYogi share: their options, and m_t and v_t over a resume."""

    def __init__(
        self, *, eta: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3
    ) -> None:
        _require("eta is above 0", eta > 0)
        _require("beta_1 and beta_2 lie in 0…1, 1 left out", 0 <= beta_1 < 1 and 0 <= beta_2 < 1)
        _require("tau is above 0", tau > 0)
        super().__init__(
            **EVERYONE,
            train_metrics_aggr_fn=pair_shares,
            eta=eta,
            beta_1=beta_1,
            beta_2=beta_2,
            tau=tau,
        )

    def save_state(self) -> Arrays:
        """Return both moments; nothing before the first aggregation."""
        return {
            f"{name}.{key}": array
            for name in ("m_t", "v_t")
            for key, array in (getattr(self, name) or {}).items()
        }

    def load_state(self, state: Arrays) -> None:
        """Go on with the moments that `save_state` gave."""
        for name in ("m_t", "v_t"):
            own = {
                key.removeprefix(f"{name}."): array
                for key, array in state.items()
                if key.startswith(f"{name}.")
            }
            setattr(self, name, own or None)


class FedAdam(_Adaptive, flower.FedAdam):
    """Adam on the server; the mean of the sites' differences is its gradient."""


class FedYogi(_Adaptive, flower.FedYogi):
    """Yogi on the server: as FedAdam, with a second moment that grows more slowly."""


class QFedAvg(flower.QFedAvg):
    """q-FedAvg: sites with a high loss lead, the more so the higher `q`; pair counts do not count.

    Sites send the mean loss of their training. What Flower calls the clients' learning rate is a
    scale here: a site's step is damped by 1 + q·‖w_k − w‖²/(client_learning_rate·F_k).
    """

    stateless = True

    def __init__(self, *, q: float = 0.1, client_learning_rate: float = 10.0) -> None:
        _require("q is ≥ 0", q >= 0)
        _require("client_learning_rate is above 0", client_learning_rate > 0)
        super().__init__(
            **EVERYONE,
            train_metrics_aggr_fn=self._shares,
            train_loss_key=TRAIN_LOSS,
            client_learning_rate=client_learning_rate,
            q=q,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for the training loss as well."""
        config[REPORT_LOSS] = True
        return super().configure_train(server_round, arrays, config, grid)

    def _shares(self, contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return the losses F_k, and F_k^q / Σ F_j^q: the sites' shares in the step's direction."""
        losses = [float(content.metric_records[METRICS][TRAIN_LOSS]) for content in contents]  # type: ignore[arg-type]
        # Flower adds the same to a loss, which may be 0.
        powers = [(loss + 1e-10) ** self.q for loss in losses]
        return MetricRecord({"weights": normalised(powers).tolist(), "train_losses": losses})
