"""`fedpref pairs`: rank the candidates by the site's annotations and write its preference pairs."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.sites import JsonOption, SitesArgument, load_sites
from fedpref.cli.teach import TeachersOption
from fedpref.preference.audit import Audit, merge_audits
from fedpref.preference.dataset import LengthOf, build_pairs
from fedpref.preference.pairs import MIN_MARGIN
from fedpref.preference.teachers.choice import make_teachers
from fedpref.task import PromptStyle


class OnTooLong(StrEnum):
    """What happens to a pair that is longer than the limit."""

    error = "error"
    drop = "drop"


class Style(StrEnum):
    """The prompt's version, for the length check."""

    full = "full"
    compact = "compact"


def pairs(
    sites: SitesArgument,
    teachers: TeachersOption = "rules",
    min_margin: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Smallest difference of composite scores.")
    ] = MIN_MARGIN,
    model: Annotated[
        str | None,
        typer.Option(help="Base model (path, name, or demo) whose tokens the lengths are."),
    ] = None,
    prompt_style: Annotated[Style, typer.Option(help="Prompt version, with --model.")] = Style.full,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens, with --model.")] = 2048,
    on_too_long: Annotated[
        OnTooLong, typer.Option(help="An over-long pair is an error, or leaves the pairs.")
    ] = OnTooLong.error,
    as_json: JsonOption = False,
) -> None:
    """Write pairs.jsonl at each site and print the projection audit of all of them.

    Needs the candidates of `fedpref teach` with the same --teachers. Lengths are checked only with
    --model; nothing is ever cut.
    """
    chosen = make_teachers(teachers)
    loaded = load_sites(sites)
    length_of: LengthOf | None = None
    context: int | None = None
    if model is not None:
        length_of, context = _length_of(model, prompt_style.value)
    audits: list[Audit] = []
    rows: list[dict[str, Any]] = []
    for site in loaded:
        built = build_pairs(
            site,
            [teacher.name for teacher in chosen],
            min_margin=min_margin,
            length_of=length_of,
            max_length=min(max_length, context or max_length),
            on_too_long=on_too_long.value,
            teacher_hashes={teacher.name: teacher.digest for teacher in chosen},
        )
        audits.append(built.audit)
        per_split = {split.split: split.pairs for split in built.audit.splits}
        rows.append({"site": site.name, **per_split, "too_long": built.too_long})
    audit = merge_audits(audits)
    if as_json:
        typer.echo(json.dumps({"sites": rows, "audit": audit.to_dict()}))
        return
    console = Console(highlight=False)
    console.print(_sites_table(rows))
    console.print(audit_table(audit))
    for split in audit.splits:
        margins = "no pairs"
        if split.margin_mean is not None and split.margin_median is not None:
            margins = f"margin mean {split.margin_mean:.3f}, median {split.margin_median:.3f}"
        console.print(f"{split.split}: {split.pairs} pairs of {split.reports} reports, {margins}")


def audit_table(audit: Audit) -> Table:
    """Return the audit as a table: one row a teacher and split, narrow enough for a terminal."""
    table = Table(title="Teacher outputs")
    names = ("strict", "eligible", "discarded", "chosen", "rejected")
    table.add_column("split")
    table.add_column("teacher")
    for name in names:
        table.add_column(name, justify="right")
    for split in audit.splits:
        for row in (row for row in audit.teachers if row.split == split.split):
            numbers = (f"{getattr(row, name):,}" for name in names)
            table.add_row(row.split, row.teacher, *numbers)
        table.add_section()
    return table


def _sites_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Preference pairs")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "site" else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table


def _length_of(model: str, style: PromptStyle) -> tuple[LengthOf, int | None]:
    """Return how long pairs are for a base model, and how many tokens it takes."""
    # Only here: without --model, this command needs no torch.
    from fedpref.training.base_model import load_base_model  # noqa: PLC0415
    from fedpref.training.encoding import pair_length  # noqa: PLC0415

    base = load_base_model(model)
    return (
        lambda text, chosen, rejected: pair_length(base.tokenizer, text, chosen, rejected, style),
        base.context,
    )
