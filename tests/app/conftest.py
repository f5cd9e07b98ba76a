"""Two small sites of synthetic reports with candidates and pairs, made once a session."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpref.data import Annotation, Report, SiteDirectory, SitePolicy, write_site
from fedpref.demo.generate import sample_report
from fedpref.demo.styles import STYLES
from fedpref.preference import build_pairs, generate, make_teachers

# Reports a site: train, dev.
SIZES = ((14, 6), (10, 6))


def make_site(path: Path, number: int, train: int, dev: int) -> None:
    rng = np.random.Generator(np.random.Philox(key=[7, number]))
    reports, annotations = [], []
    for i in range(train + dev):
        made = sample_report(rng, STYLES[number])
        name = f"r{number}-{i}"
        split = "train" if i < train else "dev"
        reports.append(Report(name, f"p{number}-{i}", split, made.text))
        annotations.append(Annotation(name, made.structure))
    write_site(
        path,
        name=path.name,
        description="synthetic",
        policy=SitePolicy(),
        synthetic=True,
        reports=reports,
        annotations=annotations,
    )
    site = SiteDirectory.load(path)
    teachers = make_teachers("rules")
    for teacher in teachers:
        generate(site, teacher)
    build_pairs(site, [teacher.name for teacher in teachers])


@pytest.fixture(scope="session")
def pristine_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    for number, (train, dev) in enumerate(SIZES):
        make_site(folder / f"site-{number + 1}", number, train, dev)
    return folder


@pytest.fixture
def sites(pristine_sites: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(pristine_sites, tmp_path / "sites")


@pytest.fixture(scope="session")
def copy_sites(pristine_sites: Path) -> Callable[[Path], Path]:
    return lambda to: shutil.copytree(pristine_sites, to)
