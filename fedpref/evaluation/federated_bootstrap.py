"""The bootstrap of a federation whose patients stay at their sites. Pure.

Each site resamples its own patients and sends the totals of each draw; the coordinator combines
draw d of all sites into one resampled federation. With the same draws it is the very computation of
`paired_cluster_bootstrap`.

Whoever knows a site's draws can solve its totals for every patient's counts: there are as many
equations as draws. Hence a site draws with a secret of its own (`site_secret`). That alone does not
help a site with few patients, which sends nothing (`fewest_patients`). What is left is no formal
guarantee: the totals show how counts are distributed over patients, though not whose they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpref.evaluation.bootstrap import (
    Effect,
    Floats,
    Integers,
    Statistic,
    cluster_counts,
    draw_totals,
    effect_of_draws,
    paired_counts,
)

GeneratorFor = Callable[[Floats], np.random.Generator]

# Expected number of draws, of all that are sent, that may cover too few patients.
_TOLERATED: Final = 0.01
# Patients for each independent column of the totals; see `fewest_patients`.
_PATIENTS_PER_COLUMN: Final = 2
# Up to here floats hold every whole number.
_LARGEST: Final = 2**53


@dataclass(frozen=True, eq=False)
class SiteTotals:
    """All that a site sends: tp, fp, fn of two arms over its reports, and over each draw of them.

    `observed` is (2, seeds, 3), `draws` is (draws, 2, seeds, 3), whole numbers ≥ 0, with the same
    tp + fn in both arms and all seeds. ValueError if they are anything else.
    """

    observed: Integers
    draws: Integers

    def __post_init__(self) -> None:
        for name in ("observed", "draws"):
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.integer):
                raise ValueError(f"{name} is no array of whole numbers")
        shape = self.observed.shape
        if len(shape) != 3 or shape[0] != 2 or shape[1] == 0 or shape[2] != 3:
            raise ValueError(f"observed is (2, seeds, 3), not {shape}")
        if self.draws.ndim != 4 or self.draws.shape[1:] != shape or not len(self.draws):
            raise ValueError(f"draws is (draws, 2, {shape[1]}, 3), not {self.draws.shape}")
        for name in ("observed", "draws"):
            value = getattr(self, name)
            if value.min() < 0 or value.max() > _LARGEST:
                raise ValueError(f"{name} holds counts that cannot be")
        # The last axes are arms, seeds and tp, fp, fn; what was annotated is one number a draw.
        if _annotations_differ(self.observed) or _annotations_differ(np.moveaxis(self.draws, 0, 2)):
            raise ValueError("tp + fn differs between arms or seeds: other annotations")

    def to_arrays(self) -> dict[str, Integers]:
        """Return the arrays by name, as they travel."""
        return {"observed": self.observed, "draws": self.draws}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "SiteTotals":
        """Return the totals of arrays as `to_arrays` names them; ValueError for anything else."""
        if arrays.keys() != {"observed", "draws"}:
            raise ValueError("totals are the arrays observed and draws, and nothing else")
        return cls(**arrays)


@dataclass(frozen=True)
class Withheld:
    """A site sends no totals; `reason` names its rule, no number of its patients."""

    reason: str


def fewest_patients(min_cell_size: int, *, draws: int, seeds: int) -> int:
    """Return how many patients a site needs to send totals; at least its policy's minimum.

    Two things would give patients away although the draws are secret. A draw of few patients: of
    five patients, some of 10,000 draws are one of them five times. So draws that cover fewer than
    `min_cell_size` different patients must be improbable; there are C(n, m−1)·((m−1)/n)^n at most.

    And many columns: the weights of different patients are nearly independent, and as many columns
    as patients can be separated into them without knowing the draws (independent component
    analysis; a test does it). Independent columns are tp and fp of two arms and each seed, and the
    findings annotated, tp + fn, which are the same everywhere. There must be twice as many
    patients: then the same analysis found nobody's weights (no correlation above 0.9), which is a
    measurement and no proof.
    """
    columns = 4 * seeds + 1
    patients = max(min_cell_size, _PATIENTS_PER_COLUMN * columns)
    few = min_cell_size - 1
    while few and draws * _share_of_few(few, patients) > _TOLERATED:
        patients += 1
    return patients


def too_few(patients: int, min_cell_size: int, *, draws: int, seeds: int) -> Withheld | None:
    """Return why a site with so many patients sends no totals, or None if it does."""
    fewest = fewest_patients(min_cell_size, draws=draws, seeds=seeds)
    if patients >= fewest:
        return None
    return Withheld(
        f"fewer than {fewest} patients, who could be told apart (minimum cell size "
        f"{min_cell_size}, {seeds} {'seed' if seeds == 1 else 'seeds'}, {draws:,} draws)"
    )


def site_totals(
    counts_a: ArrayLike,
    counts_b: ArrayLike,
    patient: ArrayLike,
    generator: GeneratorFor,
    *,
    min_cell_size: int,
    draws: int = 10_000,
) -> SiteTotals | Withheld:
    """Return what one site sends for the comparison of arm a with arm b, or why it sends nothing.

    Counts are (seeds, reports, 3) tp, fp, fn of the same reports in the same order, `patient` is
    (reports,). `generator` is the site's `SiteSecret.generator`. Every draw weighs both arms and
    all seeds alike. Raises ValueError for shapes or values that cannot be, such as arms that were
    counted against other annotations.
    """
    both = paired_counts(counts_a, counts_b)
    patients = np.asarray(patient)
    if patients.shape != (both.shape[2],):
        raise ValueError(f"patient {patients.shape} does not name {both.shape[2]} reports")
    if draws < 1:
        raise ValueError("at least one draw is needed")
    if _annotations_differ(both):
        raise ValueError("tp + fn of a report differs between arms or seeds: other annotations")
    (clusters,) = cluster_counts(both, None, patients)
    withheld = too_few(len(clusters), min_cell_size, draws=draws, seeds=both.shape[1])
    if withheld is not None:
        return withheld
    totals = draw_totals(clusters, generator(clusters), draws)
    return SiteTotals(both.sum(axis=2), totals.astype(np.int64))


def federated_bootstrap(
    sites: Mapping[str, SiteTotals | None], *, statistic: Statistic = "client_mean"
) -> Effect:
    """Return the effect of arm a over arm b (a − b) from what the sites sent, with its interval.

    None marks a site that withheld its totals. It is in neither the effect nor the interval, which
    are then those of the other sites: name it beside the result, as "worst_site" may have been it.

    "client_mean" and "worst_site" equal `paired_cluster_bootstrap` with the same draws. "global"
    sums totals over sites and differs from it: patients are resampled within their sites, so that
    each site keeps its share of every draw (a slightly narrower interval where sites differ), and a
    patient seen at two sites is two clusters, as no site can know.

    ValueError names two sites that sent another number of draws or seeds. The order of sites is
    without meaning.
    """
    sent = {name: sites[name] for name in sorted(sites)}
    known = {name: totals for name, totals in sent.items() if totals is not None}
    if not known:
        return Effect(None, None, None, "no site sent totals")
    first, *others = known
    shape = known[first].draws.shape
    for name in others:
        if known[name].draws.shape != shape:
            raise ValueError(
                f"totals are of (draws, arms, seeds, 3) {shape} at {first} and "
                f"{known[name].draws.shape} at {name}"
            )
    observed = [totals.observed.astype(np.float64) for totals in known.values()]
    draws = [totals.draws.astype(np.float64) for totals in known.values()]
    if statistic == "global":
        observed, draws = [np.sum(observed, axis=0)], [np.sum(draws, axis=0)]
    return effect_of_draws(observed, draws, statistic)


def _annotations_differ(counts: Integers) -> bool:
    """Return whether tp + fn of (arms, seeds, …, 3) counts differs between arms or seeds."""
    annotated = counts[..., 0] + counts[..., 2]
    return bool((annotated != annotated[:1, :1]).any())


def _share_of_few(few: int, patients: int) -> float:
    """Return an upper bound of the share of draws that cover at most `few` different patients."""
    choices = lgamma(patients + 1) - lgamma(few + 1) - lgamma(patients - few + 1)
    return exp(choices + patients * log(few / patients))
