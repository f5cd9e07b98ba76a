"""What a strategy keeps from round to round, on disk, so that a resumed run equals a whole one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedpref.errors import ResumeError
from fedpref.federation.strategies.at_work import at_work
from fedpref.files import atomic_path


class StrategyMemory:
    """The state of one run's strategy after each round; see `strategies.base` for its part.

    A strategy that neither says that it is stateless nor hands out its state may be used in a run,
    but such a run cannot be resumed.
    """

    def __init__(self, folder: Path, strategy: Strategy, name: str) -> None:
        self._folder, self._strategy, self._name = folder, strategy, name
        self._has_state = hasattr(strategy, "save_state") and hasattr(strategy, "load_state")

    def keep(self, round_: int) -> None:
        """Write the state after a round; that of the round before stays, in case this one fails."""
        if not self._has_state:
            return
        with at_work(self._name):
            arrays = _arrays(self._strategy.save_state())  # type: ignore[attr-defined]
        with atomic_path(self._file(round_)) as part:
            save_file(arrays, part)
        for old in self._folder.glob("round-*.safetensors"):
            if old not in (self._file(round_), self._file(round_ - 1)):
                old.unlink()

    def recall(self, round_: int) -> None:
        """Give the strategy its state after a round; before round 0 there is none.

        Raises ResumeError if the strategy has a state that was not or cannot be kept.
        """
        # Not inherited: a subclass may remember what its base does not.
        stateless = vars(type(self._strategy)).get("stateless", False)
        if round_ < 0 or (stateless and not self._has_state):
            return
        if not self._has_state:
            raise ResumeError(
                f"a run with the strategy {self._name} cannot be resumed",
                why="it may remember earlier rounds, and nothing of that was kept",
                fix="start a new run; give the class save_state and load_state, or "
                "stateless = True if it remembers nothing",
                key="strategy",
            )
        try:
            state = load_file(self._file(round_))
        except (OSError, SafetensorError) as error:
            raise ResumeError(
                f"the state of the strategy {self._name} after round {round_} cannot be read",
                why=type(error).__name__,
                fix="start a new run",
                file=self._file(round_),
                key="strategy",
            ) from None
        with at_work(self._name, ResumeError):
            self._strategy.load_state(state)  # type: ignore[attr-defined]

    def _file(self, round_: int) -> Path:
        return self._folder / f"round-{round_}.safetensors"


def _arrays(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return a strategy's state as it is written; raises TypeError if it is none."""
    arrays = {str(name): np.ascontiguousarray(array) for name, array in state.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise TypeError(f"save_state gives {name!r} as {array.dtype}, which is no number")
    return arrays
