"""`fedpref partition`: divide a pooled site directory into the sites of a simulated federation."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedpref.cli.data import refuse_existing
from fedpref.cli.enrichment import (
    DEFAULT_FACTOR,
    Enrichment,
    factors,
    outcome,
    outcome_table,
    read_enrichments,
)
from fedpref.cli.sites import JsonOption
from fedpref.data import SPLITS, PermutationTest, SiteDirectory, permutation_test, write_site
from fedpref.data.cohort import assign_sites, case_labels
from fedpref.data.quantity import drawn_shares
from fedpref.demo.sites import SHARES
from fedpref.errors import ConfigError
from fedpref.evaluation.site_cohorts import label_names
from fedpref.files import atomic_dir
from fedpref.task import ontology_of

DEFAULT_SHARES = ",".join(f"{100 * share:g}" for share in SHARES)


def partition(
    pooled: Annotated[Path, typer.Argument(help="The pooled site directory.")],
    out: Annotated[Path, typer.Argument(help="The folder to write the sites into.")],
    sites: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of sites; if not six, equal unless --shares says otherwise.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(help=f"Sizes of the sites, in any unit. (Default: {DEFAULT_SHARES})"),
    ] = None,
    quantity: Annotated[
        float | None,
        typer.Option(help="Draw the sizes instead, Dirichlet with this concentration."),
    ] = None,
    enrich: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=SITE[:FACTOR]",
            help="Give a site more reports with a label; may be repeated. "
            f"(Default factor: {DEFAULT_FACTOR:g})",
        ),
    ] = None,
    enrich_small: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL[:FACTOR]",
            help="The same at every site below an equal share; may be repeated.",
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Dirichlet concentration; small is skewed.")] = 0.5,
    skew: Annotated[float, typer.Option(min=0, max=1, help="Weight of the label profiles.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of profiles and draws.")] = 20260713,
    ontology: Annotated[
        Path | None, typer.Option(help="Another ontology's TOML file, if the task is not ours.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Divide a pool among sites of unequal size and case mix.

    Patients and equal texts stay at one site. A report with an enriched label goes to the sites
    named FACTOR times as readily; the sizes stay what they are. The table compares each split's
    divergence with random divisions of the same sizes. A site that would hold nothing is named
    and not written.
    """
    refuse_existing(out)
    sizes = _sizes(sites, shares) if quantity is None else _drawn(sites, shares, quantity, seed)
    names = [_name(k, len(sizes)) for k in range(len(sizes))]
    if not 0 < alpha < float("inf"):
        raise ConfigError(f"--alpha {alpha} was given", fix="use a finite number > 0")
    pool = SiteDirectory.load(pooled, ontology_of(ontology))
    annotations = [pool.annotations[report.report_id] for report in pool.reports]
    labels = case_labels(annotations, pool.ontology)
    enrichments = read_enrichments(
        enrich or [],
        enrich_small or [],
        labels=label_names(pool.ontology),
        sites=names,
        shares=sizes,
    )
    _check_present(enrichments, labels, pool)
    at = assign_sites(
        pool.reports,
        annotations,
        sizes,
        alpha=alpha,
        skew=skew,
        seed=seed,
        ontology=pool.ontology,
        enrichment=factors(enrichments, labels.shape[1], len(sizes)),
    )
    with atomic_dir(out) as part:
        for k in np.unique(at):
            rows = np.flatnonzero(at == k)
            write_site(
                part / names[k],
                name=f"{pool.name}-{names[k]}",
                description=f"part {k + 1} of {len(sizes)} of {pool.name}: {pool.description}",
                synthetic=pool.info.synthetic,
                policy=pool.policy,
                reports=[pool.reports[row] for row in rows],
                annotations=[annotations[row] for row in rows],
            )
    split_of = np.array([report.split for report in pool.reports])
    tests = {
        split: permutation_test(labels[split_of == split], at[split_of == split], seed=seed)
        for split in SPLITS
        if (split_of == split).any()
    }
    rows_at: list[dict[str, Any]] = [
        {"site": name, **{s: int(((at == k) & (split_of == s)).sum()) for s in tests}}
        for k, name in enumerate(names)
    ]
    unwritten = [name for k, name in enumerate(names) if not (at == k).any()]
    enriched = outcome(
        enrichments,
        labels=labels,
        at=at,
        split_of=split_of,
        splits=list(tests),
        label_names=label_names(pool.ontology),
        site_names=names,
    )
    if as_json:
        shown: dict[str, Any] = {
            "sites": rows_at,
            "not_written": unwritten,
            "divergence": {split: vars(test) for split, test in tests.items()},
        }
        # Only where they were asked for, so that a plain partition says what it always said.
        if quantity is not None:
            shown["shares"] = sizes
        if enriched:
            shown["enriched"] = enriched
        typer.echo(json.dumps(shown))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_sites_table(rows_at, list(tests)))
    console.print(_divergence_table(tests, Counter(split_of.tolist())))
    if enriched:
        console.print(outcome_table(enriched, list(tests)))
    if unwritten:
        console.print(f"without any report, not written: {', '.join(unwritten)}", style="yellow")
    untrained = [r["site"] for r in rows_at if r.get("train") == 0 and r["site"] not in unwritten]
    if untrained:
        console.print(f"without training reports: {', '.join(untrained)}", style="yellow")
    console.print(f"written: {out}", markup=False)


def _sizes(sites: int | None, shares: str | None) -> list[float]:
    """Return one size a site; raises ConfigError if the two options cannot both hold."""
    if shares is None and sites is not None and sites != DEFAULT_SHARES.count(",") + 1:
        return [1.0] * sites
    sizes = _shares(DEFAULT_SHARES if shares is None else shares)
    if sites is not None and sites != len(sizes):
        raise ConfigError(
            f"--sites {sites} and --shares with {len(sizes)} sizes were given",
            fix="give one size a site, or leave one option out",
        )
    return sizes


def _drawn(sites: int | None, shares: str | None, quantity: float, seed: int) -> list[float]:
    """Return the drawn sizes, largest first; raises ConfigError for a second word on sizes."""
    if shares is not None:
        raise ConfigError(
            f"--quantity {quantity:g} and --shares {shares!r} were given",
            why="both set the sizes",
            fix="leave one of them out",
        )
    try:
        count = DEFAULT_SHARES.count(",") + 1 if sites is None else sites
        return [float(share) for share in drawn_shares(count, quantity, seed=seed)]
    except ValueError:
        raise ConfigError(
            f"--quantity {quantity} was given", fix="use a finite number > 0"
        ) from None


def _check_present(
    enrichments: Sequence[Enrichment], labels: NDArray[np.bool_], pool: SiteDirectory
) -> None:
    for enrichment in enrichments:
        if not labels[:, enrichment.label].any():
            raise ConfigError(
                f"no report is labelled {label_names(pool.ontology)[enrichment.label]!r}",
                why="a label that does not occur cannot be enriched",
                fix="enrich another label",
                file=pool.path,
            )


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


def _divergence_table(tests: Mapping[str, PermutationTest], reports: Mapping[str, int]) -> Table:
    table = Table(title="Case-mix divergence (percentage points) against random divisions")
    for column in ("split", "reports", "observed", "null 95th", "ratio", "p"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, test in tests.items():
        table.add_row(
            split,
            str(reports[split]),
            f"{100 * test.observed:.2f}",
            f"{100 * test.null_95:.2f}",
            "–" if test.ratio is None else f"{test.ratio:.2f}",
            f"{test.p_value:.4f}",
        )
    return table
