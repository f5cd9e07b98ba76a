"""From one pool of annotated reports to splits, and from splits to sites. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedpref.data.partition import allocate
from fedpref.data.records import SPLITS, Annotation, Report
from fedpref.data.text import duplicate_key
from fedpref.task import ONTOLOGY, Ontology

DEFAULT_FRACTIONS: Final = {"train": 0.70, "dev": 0.15, "test": 0.15}


def case_labels(
    annotations: Sequence[Annotation], ontology: Ontology = ONTOLOGY
) -> NDArray[np.bool_]:
    """Return (N, diseases + 1): the diseases in canonical order, then "normal".

    A report is normal if it has no disease and no disease is left undecided.
    """
    labels = np.zeros((len(annotations), len(ontology.diseases) + 1), dtype=bool)
    for row, annotation in enumerate(annotations):
        for disease in annotation.structure.diseases:
            labels[row, ontology.disease_rank[disease]] = True
        labels[row, -1] = not annotation.structure.diseases and not annotation.ignore.diseases
    return labels


def inseparable(reports: Sequence[Report]) -> NDArray[np.int64]:
    """Return (N,) group numbers: reports of one patient, or with equal texts, share a number.

    Equal means equal after `duplicate_key`. Groups join through either relation.
    """
    n = len(reports)
    keys: dict[tuple[str, str], int] = {}
    edges = [
        (row, n + keys.setdefault(key, len(keys)))
        for row, report in enumerate(reports)
        for key in (("patient", report.patient_id), ("text", duplicate_key(report.text)))
    ]
    if not edges:
        return np.empty(0, dtype=np.int64)
    rows, columns = np.array(edges).T
    size = n + len(keys)
    graph = scipy.sparse.coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    _, component = scipy.sparse.csgraph.connected_components(graph, directed=False)
    return np.asarray(component[:n], dtype=np.int64)


def split_cohort(
    reports: Sequence[Report],
    annotations: Sequence[Annotation],
    *,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    seed: int,
) -> list[Report]:
    """Return the reports with a new `split`, in the same order, stratified by rarest label.

    Patients and equal texts stay in one split. Within each stratum, groups come in a seeded order
    and go to the split that is furthest behind its fraction.
    """
    unknown = set(fractions) - set(SPLITS)
    if unknown or not fractions or any(not f >= 0 for f in fractions.values()):
        raise ValueError(f"fractions must be non-negative numbers for some of {SPLITS}")
    names = list(fractions)
    share = np.array([fractions[name] for name in names]) / sum(fractions.values())
    labels = case_labels(annotations)
    frequency = labels.sum(axis=0)
    rng = np.random.Generator(np.random.Philox(seed))
    members: dict[int, list[int]] = {}
    for row, group in enumerate(inseparable(reports)):
        members.setdefault(int(group), []).append(row)
    groups = list(members.values())
    strata: dict[int, list[list[int]]] = {}
    for number in rng.permutation(len(groups)):
        group_labels = np.flatnonzero(labels[groups[number]].any(axis=0))
        rarest = min(group_labels, key=lambda label: frequency[label], default=-1)
        strata.setdefault(int(rarest), []).append(groups[number])
    chosen = np.empty(len(reports), dtype=np.int64)
    for _, stratum in sorted(strata.items()):
        filled = np.zeros(len(names))
        for rows in sorted(stratum, key=len, reverse=True):
            split = int(np.argmax(share * (filled.sum() + len(rows)) - filled))
            filled[split] += len(rows)
            chosen[rows] = split
    return [replace(r, split=names[s]) for r, s in zip(reports, chosen, strict=True)]


def assign_sites(
    reports: Sequence[Report],
    annotations: Sequence[Annotation],
    shares: ArrayLike,
    *,
    alpha: float,
    skew: float,
    seed: int,
    ontology: Ontology = ONTOLOGY,
    enrichment: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Return (N,) the site of each report: each split is allocated by itself (DESIGN 1.10).

    The profiles drawn for the first split that occurs (train, if there is one) also shape the
    others; split number s draws its rows with `seed + s`. `enrichment` (labels, sites) holds for
    every split, see `allocate`.
    """
    labels = case_labels(annotations, ontology)
    groups = inseparable(reports)
    site = np.empty(len(reports), dtype=np.int64)
    profiles: NDArray[np.float64] | None = None
    for number, split in enumerate(SPLITS):
        rows = np.array([i for i, report in enumerate(reports) if report.split == split], dtype=int)
        if not len(rows):
            continue
        allocation = allocate(
            labels[rows],
            shares,
            alpha=alpha,
            skew=skew,
            seed=seed + number,
            profiles=profiles,
            groups=groups[rows],
            enrichment=enrichment,
        )
        profiles = allocation.profiles
        site[rows] = allocation.site
    return site
