"""A small invented site with annotations, for candidates and pairs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpref.data import Annotation, Report, SiteDirectory, SitePolicy, write_site
from fedpref.task import Ignore, Structure

REPORTS = [
    Report("r1", "p1", "train", "Small right effusion and left basilar atelectasis."),
    Report(
        "r2",
        "p2",
        "train",
        "No effusion, edema, consolidation, pneumothorax or right base opacity.",
    ),
    Report("r3", "p3", "dev", "Opacity in the left upper lobe.", "elsewhere"),
    Report("r4", "p4", "test", "Left pneumothorax."),
    Report("r5", "p5", "train", "Left lower lobe infiltrate. Right effusion."),
]
ANNOTATIONS = [
    Annotation(
        "r1",
        Structure(
            (), [("pleural effusion", "right lung"), ("atelectasis", "left lower lung zone")]
        ),
    ),
    Annotation("r2", Structure()),
    Annotation("r3", Structure((), [("lung opacity", "left upper lung zone")])),
    Annotation("r4", Structure((), [("pneumothorax", "left lung")])),
    Annotation(
        "r5",
        Structure((), [("pleural effusion", "right lung")]),
        Ignore(diseases=frozenset({"lung opacity"})),
    ),
]


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., SiteDirectory]:
    def make(
        reports: list[Report] = REPORTS,
        annotations: list[Annotation] = ANNOTATIONS,
        name: str = "site-a",
    ) -> SiteDirectory:
        write_site(
            tmp_path / name,
            name=name,
            description="invented",
            policy=SitePolicy(),
            reports=reports,
            annotations=annotations,
        )
        return SiteDirectory.load(tmp_path / name)

    return make


@pytest.fixture
def site(make_site: Callable[..., SiteDirectory]) -> SiteDirectory:
    return make_site()
