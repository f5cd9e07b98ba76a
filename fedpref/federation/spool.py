"""Updates on disk: one file a site for the open round, so that memory holds one at a time."""

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedpref.adapter_state import AdapterSpec
from fedpref.files import atomic_path

# Opening a file for every tensor costs time; a process may not hold many files open.
_STAY_OPEN: Final = 64


@dataclass(frozen=True)
class SiteUpdate:
    """What a site contributed to a round: its adapter, and the distinct pairs trained, > 0.

    A tensor of `state` may be read from disk whenever it is looked at. `loss` is the mean of the
    site's training losses in the round, None unless the strategy asked for it.
    """

    site: str
    pairs: int
    state: Mapping[str, NDArray[np.float32]]
    loss: float | None = None


class StateFile(Mapping[str, NDArray[np.float32]]):
    """An adapter in a flat file; each look at a tensor reads that tensor, and keeps nothing.

    With `stays_open`, the file is open as long as this object lives, else for each look.
    """

    def __init__(self, path: Path, spec: AdapterSpec, *, stays_open: bool = False) -> None:
        self._places, self._shapes = spec.places, dict(zip(spec.keys, spec.shapes, strict=True))
        self._path = path
        self._file: int | None = None
        if stays_open:
            self._file = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)

    def __getitem__(self, key: str) -> NDArray[np.float32]:
        place = self._places[key]
        values = np.empty(place.stop - place.start, dtype=np.float32)
        file = os.open(self._path, os.O_RDONLY) if self._file is None else self._file
        try:
            read = os.preadv(file, [values.data], values.itemsize * place.start)
        finally:
            if self._file is None:
                os.close(file)
        if read != values.nbytes:
            raise OSError("the file of an update is shorter than an adapter")
        return values.reshape(self._shapes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Spool:
    """The accepted updates of one round, read in the order of the sites' names."""

    def __init__(self, folder: Path, round_: int) -> None:
        self._folder = folder / f"round-{round_}"
        # What an interrupted server left here belongs to a round that is trained again.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._said: dict[str, tuple[int, float | None]] = {}

    def put(
        self, site: str, flat: NDArray[np.float32], pairs: int, loss: float | None = None
    ) -> None:
        """Store one site's update; a site has one update a round."""
        if site in self._said:
            raise ValueError(f"site {site} has already sent an update for this round")
        with atomic_path(self._file(site)) as part, part.open("wb") as stream:
            flat.tofile(stream)
        self._said[site] = pairs, loss

    def discard(self, site: str) -> None:
        """Delete one site's update, which turned out not to be acceptable."""
        del self._said[site]
        self._file(site).unlink()

    @property
    def pair_counts(self) -> Mapping[str, int]:
        """The pair counts of the stored updates, sorted by site."""
        return {site: pairs for site, (pairs, _) in sorted(self._said.items())}

    def updates(self, spec: AdapterSpec) -> list[SiteUpdate]:
        """Return the stored updates, sorted by site, without reading them."""
        return [
            SiteUpdate(
                site, pairs, StateFile(self._file(site), spec, stays_open=number < _STAY_OPEN), loss
            )
            for number, (site, (pairs, loss)) in enumerate(sorted(self._said.items()))
        ]

    def remove(self) -> None:
        """Delete the round's files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, site: str) -> Path:
        return self._folder / f"{site}.f32"
