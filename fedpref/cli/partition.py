"""`fedpref partition`: divide a pooled site directory into the sites of a simulated federation."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedpref.cli.data import refuse_existing
from fedpref.cli.sites import JsonOption
from fedpref.data import SPLITS, SiteDirectory, permutation_test, write_site
from fedpref.data.cohort import assign_sites, case_labels
from fedpref.errors import ConfigError
from fedpref.files import atomic_dir


def partition(
    pooled: Annotated[Path, typer.Argument(help="The pooled site directory.")],
    out: Annotated[Path, typer.Argument(help="The folder to write the sites into.")],
    shares: Annotated[
        str, typer.Option(help="Sizes of the sites, in any unit; as many as there are sites.")
    ] = "28,22,18,14,10,8",
    alpha: Annotated[float, typer.Option(help="Dirichlet concentration; small is skewed.")] = 0.5,
    skew: Annotated[float, typer.Option(min=0, max=1, help="Weight of the label profiles.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of profiles and draws.")] = 20260713,
    as_json: JsonOption = False,
) -> None:
    """Divide a pool among sites of unequal size and case mix.

    Patients and equal texts stay at one site. The table compares each split's divergence with
    random divisions of the same sizes.
    """
    refuse_existing(out)
    sizes = _shares(shares)
    if alpha <= 0:
        raise ConfigError(f"--alpha {alpha} was given", fix="use a number > 0")
    site = SiteDirectory.load(pooled)
    annotations = [site.annotations[report.report_id] for report in site.reports]
    at = assign_sites(site.reports, annotations, sizes, alpha=alpha, skew=skew, seed=seed)
    with atomic_dir(out) as part:
        for k in range(len(sizes)):
            rows = np.flatnonzero(at == k)
            write_site(
                part / _name(k, len(sizes)),
                name=f"{site.name}-{_name(k, len(sizes))}",
                description=f"part {k + 1} of {len(sizes)} of {site.name}: {site.description}",
                synthetic=site.info.synthetic,
                policy=site.policy,
                reports=[site.reports[row] for row in rows],
                annotations=[annotations[row] for row in rows],
            )
    labels = case_labels(annotations, site.ontology)
    splits = np.array([report.split for report in site.reports])
    tests = {
        split: permutation_test(labels[splits == split], at[splits == split], seed=seed)
        for split in SPLITS
        if (splits == split).any()
    }
    sites = [
        {"site": _name(k, len(sizes)), **Counter(splits[at == k].tolist())}
        for k in range(len(sizes))
    ]
    if as_json:
        divergence = {split: vars(test) for split, test in tests.items()}
        typer.echo(json.dumps({"sites": sites, "divergence": divergence}))
        return
    console = Console(highlight=False)
    console.print(_sites_table(sites, list(tests)))
    table = Table(title="Case-mix divergence (percentage points) against random divisions")
    for column in ("split", "reports", "observed", "null 95th", "ratio", "p"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, test in tests.items():
        table.add_row(
            split,
            str(int((splits == split).sum())),
            f"{100 * test.observed:.2f}",
            f"{100 * test.null_95:.2f}",
            "–" if test.ratio is None else f"{test.ratio:.2f}",
            f"{test.p_value:.4f}",
        )
    console.print(table)
    empty = [str(row["site"]) for row in sites if not row.get("train")]
    if empty:
        console.print(f"without training reports: {', '.join(empty)}", style="yellow")
    console.print(f"written: {out}")


def _shares(text: str) -> list[float]:
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or any(not 0 <= size < float("inf") for size in sizes) or sum(sizes) <= 0:
        raise ConfigError(
            f"--shares {text!r} is not a list of sizes", fix='write, for example, "28,22,18"'
        )
    return sizes


def _name(k: int, sites: int) -> str:
    """Return a folder name that sorts in order: site-1 …, or site-01 … with ten sites or more."""
    return f"site-{k + 1:0{len(str(sites))}d}"


def _sites_table(sites: list[dict[str, Any]], splits: list[str]) -> Table:
    table = Table(title="Reports a site")
    table.add_column("site")
    for split in splits:
        table.add_column(split, justify="right")
    for row in sites:
        table.add_row(row["site"], *(str(row.get(split, 0)) for split in splits))
    return table
