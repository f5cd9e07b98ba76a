"""The SITE… argument of several commands: site directories, or folders that hold some."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpref.data import SiteDirectory, site_directories
from fedpref.errors import DataError

SitesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="SITE…", help="Site directories, or folders that hold some."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")
]


def site_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the site directories that these paths mean, in order, each once.

    A folder with a site.toml is one; any other gives the site directories in it. Raises DataError
    naming the folder if it has none.
    """
    found: list[Path] = []
    for path in paths:
        inner = [path] if (path / "site.toml").exists() else site_directories(path)
        if not inner:
            raise DataError(
                "this is no site directory, and holds none",
                file=path,
                fix="name a folder with a site.toml (`fedpref data demo` writes some)",
            )
        found.extend(inner)
    return list(dict.fromkeys(found))


def load_sites(paths: Sequence[Path]) -> list[SiteDirectory]:
    """Return the loaded sites of a SITE… argument; raises their DataErrors."""
    return [SiteDirectory.load(path) for path in site_paths(paths)]
