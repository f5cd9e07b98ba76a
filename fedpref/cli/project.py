"""`fedpref project`: what a model's answer on standard input says, as canonical JSON."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpref.task import ontology_of
from fedpref.task import project as project_text


def project(
    ontology: Annotated[
        Path | None, typer.Option(help="A TOML file with another ontology.")
    ] = None,
) -> None:
    """Read a model's answer on standard input and print its projection as JSON.

    Keys: structure, eligible, strict, failure, dropped. The exit status is 0 also for an answer
    that cannot be projected; `failure` says why.
    """
    names = ontology_of(ontology)
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    projection = project_text(text, names)
    typer.echo(
        json.dumps(
            {
                "structure": projection.structure.to_dict(),
                "eligible": projection.eligible,
                "strict": projection.strict,
                "failure": projection.failure,
                "dropped": dict(projection.dropped),
            },
            ensure_ascii=False,
        )
    )
