"""`fedpref score`: how well one extraction matches another."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.sites import JsonOption
from fedpref.errors import DataError
from fedpref.task import ONTOLOGY, Ignore, Ontology, Structure, ontology_of
from fedpref.task import project as project_text
from fedpref.task import score as score_structures


def score(
    candidate: Annotated[
        Path, typer.Option(help="A model's answer; it is projected as in training.")
    ],
    target: Annotated[
        Path, typer.Option(help="The reference: JSON with diseases, findings and maybe ignore.")
    ],
    ontology: Annotated[
        Path | None, typer.Option(help="A TOML file with another ontology.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print loc+dis F1, disease F1 and the composite score of a candidate against a target."""
    names = ontology_of(ontology)
    projection = project_text(_read(candidate), names)
    if not projection.eligible:
        raise DataError(
            f"the candidate cannot be projected ({projection.failure})",
            why="only an answer that holds a valid object has a score",
            fix="see `fedpref project`",
            file=candidate,
        )
    structure, ignore = read_target(target, names)
    result = score_structures(projection.structure, structure, ignore)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    table = Table(show_header=False)
    table.add_row("loc+dis F1", f"{result.location_disease_f1:.4f}")
    table.add_row("disease F1", f"{result.disease_f1:.4f}")
    table.add_row("composite score", f"{result.composite:.4f}")
    Console(highlight=False).print(table)


def read_target(path: Path, ontology: Ontology = ONTOLOGY) -> tuple[Structure, Ignore]:
    """Return the structure and the masks of a reference file, in the shape of an annotation.

    Raises DataError naming the file if it is no JSON, has another shape, or an unknown name.
    """
    fix = 'write {"diseases": […], "findings": [{"disease": …, "location": …}]}'
    try:
        value = json.loads(_read(path))
        structure = Structure.from_dict(value, ontology)
        ignore = _ignore(value.get("ignore", {}), ontology)
    except (ValueError, RecursionError) as error:
        what = "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"the target cannot be read: {what}", file=path, fix=fix) from None
    return structure, ignore


def _ignore(value: Any, ontology: Ontology) -> Ignore:
    names = ("diseases", "locations_of")
    if not isinstance(value, dict) or not value.keys() <= set(names):
        raise ValueError("ignore is an object with diseases and locations_of")
    lists = [value.get(name, []) for name in names]
    for items in lists:
        if not isinstance(items, list) or not all(item in ontology.diseases for item in items):
            raise ValueError("ignore holds lists of known diseases")
    return Ignore(*(frozenset(items) for items in lists))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})", file=path) from None
