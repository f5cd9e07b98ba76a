"""The secret of a site's bootstrap draws: made once, kept in the site's state, sent to nobody."""

import hmac
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedpref.errors import DataError
from fedpref.evaluation.bootstrap import Floats
from fedpref.hashing import canonical_json
from fedpref.write_once import write_once

# No federation id begins with a dot: the secret lies beside the federations' folders.
SECRET_FILE: Final = ".bootstrap-secret"
_BYTES: Final = 32
_MODE: Final = 0o600


@dataclass(frozen=True, repr=False)
class SiteSecret:
    """256 random bits. `repr` shows none of them."""

    key: bytes

    def __repr__(self) -> str:
        return "SiteSecret()"

    def generator(self, clusters: Floats) -> np.random.Generator:
        """Return the random stream for drawing from these counts per patient.

        Equal counts give equal draws, so that asking again tells nothing new, and neither does
        asking with arms or seeds in another order, or one of them twice. Other counts give
        independent draws: answers to several questions cannot be laid side by side as if the same
        patients had been drawn, which would make them separable (see `fewest_patients`).
        """
        flat = clusters.reshape(len(clusters), -1)
        columns = np.unique(flat, axis=1) if flat.size else flat
        content = repr(columns.shape).encode() + columns.astype("<i8").tobytes()
        seed = int.from_bytes(self._digest("draws", content), "big")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))

    def fingerprint(self, value: object) -> str:
        """Return 12 hex digits for a JSON value, to compare values of this site by.

        To anybody without the secret they say whether two values are equal and nothing else: a
        plain hash of ids that can be guessed would confirm a guess.
        """
        content = canonical_json(value).encode("utf-8", "surrogatepass")
        return self._digest("fingerprint", content).hex()[:12]

    def _digest(self, purpose: str, content: bytes) -> bytes:
        return hmac.digest(self.key, purpose.encode() + b"\0" + content, "sha256")


def site_secret(state: Path) -> SiteSecret:
    """Return the secret of a site's state folder; the first call makes it, readable by its owner.

    One for all federations of the site: the same counts are drawn alike in each.

    Raises DataError if the file is malformed, or if others than its owner may read it.
    """
    path = state / SECRET_FILE
    if not path.exists():
        # Of two processes that come first, one writes; both read what it wrote.
        write_once(path, secrets.token_hex(_BYTES).encode() + b"\n", mode=_MODE)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise DataError(
            "others than its owner may read the secret of the bootstrap draws",
            why="who knows it can compute every patient's counts from what the site sends",
            fix="chmod 600 if nobody has read it, else delete it: another one is then made",
            file=path,
        )
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise DataError(
            f"the file does not hold {_BYTES} bytes in hexadecimal",
            fix="delete it: another one is then made",
            file=path,
        )
    return SiteSecret(key)
