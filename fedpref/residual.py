"""A frozen residual beside an adapter: both are one state, of a higher rank and the same scale.

The first `spec.rank` rows of A and columns of B are the adapter that sites train; what follows is
the residual, which policy and reference serve and nobody trains. ΔW = scale·B·A holds for the
whole, so that hashes, files and PEFT take it for what it is: one adapter. A state of the
specification's own rank has no residual.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedpref.adapter_state import CONFIG_FILE, AdapterSpec, AdapterState, load_adapter


def rank_of(state: Mapping[str, NDArray[Any]]) -> int:
    """Return the rank of a state, 0 if it has no lora_A."""
    return next((len(array) for key, array in state.items() if ".lora_A." in key), 0)


def spec_of(state: Mapping[str, NDArray[Any]], spec: AdapterSpec) -> AdapterSpec:
    """Return what a state must fit: `spec`, at the state's own rank if that is higher."""
    return spec.at_rank(max(rank_of(state), spec.rank))


def spec_of_size(size: int, spec: AdapterSpec) -> AdapterSpec:
    """Return the same for a flat state of so many values; `spec` if no rank gives that number."""
    per_rank = spec.parameter_count // spec.rank
    fits = size > spec.parameter_count and size % per_rank == 0
    return spec.at_rank(size // per_rank) if fits else spec


def split(state: AdapterState, rank: int) -> tuple[AdapterState, AdapterState | None]:
    """Return the first `rank` rows of A and columns of B, and the rest (None if there is none).

    Both are views; a state without a rest is returned as it is.
    """
    if rank_of(state) <= rank:
        return state, None
    return _part(state, slice(None, rank)), _part(state, slice(rank, None))


def load_served(path: Path, spec: AdapterSpec) -> AdapterState:
    """Return the adapter of a folder as `load_adapter` does, with its residual if it has one."""
    try:
        rank = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))["r"]
    except (OSError, ValueError, KeyError, TypeError):
        rank = spec.rank  # the next line says what is wrong with the file
    wider = isinstance(rank, int) and rank > spec.rank
    return load_adapter(path, spec.at_rank(rank) if wider else spec)


def _part(state: AdapterState, columns: slice) -> AdapterState:
    return {
        key: array[columns] if ".lora_A." in key else array[:, columns]
        for key, array in state.items()
    }
