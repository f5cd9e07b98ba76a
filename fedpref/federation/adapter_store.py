"""The global adapters that a site keeps, by content hash: the current one and the root."""

from collections.abc import Collection
from pathlib import Path

from fedpref.adapter_state import (
    AdapterSpec,
    AdapterState,
    initial_state,
    save_adapter,
    state_digest,
)
from fedpref.errors import AdapterError
from fedpref.residual import load_served, spec_of


class AdapterStore:
    """Adapters in `folder`, one sub-folder a hash; the initial adapter is never stored.

    What was damaged or deleted is simply not held: the coordinator sends it again.
    """

    def __init__(self, folder: Path, spec: AdapterSpec, seed: int) -> None:
        self._folder, self._spec, self._seed = folder, spec, seed
        self.initial_hash = state_digest(initial_state(spec, seed))

    def load(self, name: str) -> AdapterState | None:
        """Return the adapter with this hash, verified, or None if the site does not hold it."""
        if name == self.initial_hash:
            return initial_state(self._spec, self._seed)
        if name not in self._names():
            return None
        try:
            state = load_served(self._folder / name, self._spec)
        except AdapterError:
            return None
        return state if state_digest(state) == name else None

    def save(self, name: str, state: AdapterState, base_name: str) -> None:
        """Keep an adapter under its hash."""
        if name != self.initial_hash:
            save_adapter(self._folder / name, state, spec_of(state, self._spec), base_name)

    def holds(self, names: Collection[str]) -> list[str]:
        """Return those of `names` that `load` would give back."""
        return sorted(name for name in set(names) if name and self.load(name) is not None)

    def _names(self) -> set[str]:
        # A name comes from a message: it is looked up among what is there, never used as a path.
        if not self._folder.is_dir():
            return set()
        return {path.name for path in self._folder.iterdir() if path.is_dir()}

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all other adapters, so that a long run does not fill the site's disk."""
        for name in self._names() - set(names):
            folder = self._folder / name
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
