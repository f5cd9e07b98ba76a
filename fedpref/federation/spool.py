"""Replies on disk: one file a site for the open round, so that memory holds one reply at a time."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpref.files import atomic_path


class Spool:
    """The accepted updates of one round: flat adapters and pair counts, read in site order."""

    def __init__(self, folder: Path, round_: int) -> None:
        self._folder = folder / f"round-{round_}"
        # What an interrupted server left here belongs to a round that is trained again.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._counts: dict[str, int] = {}

    def put(self, site: str, flat: NDArray[np.float32], pair_count: int) -> None:
        """Store one site's update; a site has one update a round."""
        if site in self._counts:
            raise ValueError(f"site {site} has already sent an update for this round")
        with atomic_path(self._folder / f"{site}.npy") as part, part.open("wb") as stream:
            np.save(stream, flat, allow_pickle=False)
        self._counts[site] = pair_count

    def discard(self, site: str) -> None:
        """Delete one site's update, which turned out not to be acceptable."""
        del self._counts[site]
        (self._folder / f"{site}.npy").unlink()

    @property
    def pair_counts(self) -> Mapping[str, int]:
        """The pair counts of the stored updates, sorted by site."""
        return dict(sorted(self._counts.items()))

    def __iter__(self) -> Iterator[tuple[str, NDArray[np.float32], int]]:
        """Yield (site, flat adapter, pair count), sorted by site, each loaded when asked for."""
        for site, count in self.pair_counts.items():
            yield site, np.load(self._folder / f"{site}.npy", allow_pickle=False), count

    def remove(self) -> None:
        """Delete the round's files."""
        shutil.rmtree(self._folder, ignore_errors=True)
