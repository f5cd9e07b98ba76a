"""`fedpref data`: site directories from the bundled demo or from public collections."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.sites import JsonOption
from fedpref.data import write_site
from fedpref.data.cohort import DEFAULT_FRACTIONS, split_cohort
from fedpref.data.openi import OpenI, read_openi
from fedpref.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Make site directories from data.")


@app.command()
def demo(
    out: Annotated[Path, typer.Argument(help="The folder to write the six sites into.")],
    seed: Annotated[int | None, typer.Option(help="Another seed gives other reports.")] = None,
) -> None:
    """Write the six synthetic demo sites, with candidates and pairs."""
    from fedpref.demo.sites import DEFAULT_SEED, add_pairs, write_demo_sites  # noqa: PLC0415

    refuse_existing(out)
    paths = write_demo_sites(out, seed=DEFAULT_SEED if seed is None else seed)
    add_pairs(out)
    typer.echo(f"{len(paths)} synthetic sites in {out}")


@app.command()
def openi(
    table: Annotated[Path, typer.Argument(help="Your copy of indiana_reports.csv.")],
    out: Annotated[Path, typer.Argument(help="The pooled site directory to write.")],
    seed: Annotated[
        int, typer.Option(help="Seed of the split into train, dev and test.")
    ] = 20260713,
    as_json: JsonOption = False,
) -> None:
    """Read the Open-i collection into one pooled site directory, split 70/15/15.

    Equal texts stay in one split. `fedpref partition` divides the pool into sites.
    """
    refuse_existing(out)
    collection = read_openi(table)
    reports = split_cohort(
        collection.reports, collection.annotations, fractions=DEFAULT_FRACTIONS, seed=seed
    )
    write_site(
        out,
        name="openi",
        description="Open-i chest X-ray reports (CC BY-NC-ND 4.0), codes as annotations",
        reports=reports,
        annotations=collection.annotations,
    )
    counts = collection.counts()
    counts["splits"] = {
        split: sum(report.split == split for report in reports) for split in DEFAULT_FRACTIONS
    }
    if as_json:
        typer.echo(json.dumps(counts))
        return
    _print(collection, counts, out)


def refuse_existing(out: Path) -> None:
    """Raise DataError if `out` holds anything: no command replaces data that it did not make."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("the folder is not empty", file=out, fix="remove it, or name another")


def _print(collection: OpenI, counts: dict[str, object], out: Path) -> None:
    console = Console(highlight=False)
    table = Table(title="Open-i: reports a disease")
    table.add_column("disease", no_wrap=True)
    columns = ("positive", "with_location", "masked_by_code", "masked_by_text")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    diseases = counts["diseases"]
    assert isinstance(diseases, dict)
    for disease, row in diseases.items():
        table.add_row(disease, *(str(row[column]) for column in columns))
    console.print(table)
    left_out = ", ".join(
        f"{n} {reason.replace('_', ' ')}" for reason, n in collection.excluded.items()
    )
    console.print(f"usable reports {counts['usable']} (left out: {left_out})")
    console.print(f"normal {counts['normal']}, distinct texts {counts['distinct_texts']}")
    console.print(
        f"with a disease {counts['with_disease']}, with a placed one {counts['with_finding']}, "
        f"only undecided {counts['only_masked']}"
    )
    splits = counts["splits"]
    assert isinstance(splits, dict)
    console.print("splits: " + ", ".join(f"{split} {n}" for split, n in splits.items()))
    console.print(f"written: {out}", markup=False, soft_wrap=True)
