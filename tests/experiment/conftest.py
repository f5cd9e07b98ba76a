"""Two small invented sites with pairs, as a folder of a simulated federation."""

from pathlib import Path

import pytest

from fedpref.config import RunConfig, load_config
from fedpref.data import Annotation, Report, SiteDirectory, write_site
from fedpref.preference import build_pairs, generate, make_teachers
from fedpref.task import Structure

TEXTS = {
    "north": ["Small right effusion and left basilar atelectasis.", "No effusion or edema."],
    "south": ["Left lower lobe infiltrate. Right effusion.", "Left pneumothorax."],
}
EFFUSION = Structure((), [("pleural effusion", "right lung")])


def write_north_and_south(folder: Path) -> Path:
    for name, texts in TEXTS.items():
        reports = [
            Report(f"{name}-{split}-{n}", f"{name}-p-{split}-{n}", split, text)
            for split in ("train", "dev", "test")
            for n, text in enumerate(texts)
        ]
        write_site(
            folder / name,
            name=name,
            synthetic=True,
            reports=reports,
            annotations=[
                Annotation(r.report_id, EFFUSION if r.report_id.endswith("0") else Structure())
                for r in reports
            ],
        )
        site = SiteDirectory.load(folder / name)
        teachers = make_teachers("rules")
        for teacher in teachers:
            generate(site, teacher)
        build_pairs(site, [teacher.name for teacher in teachers])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_north_and_south(tmp_path / "sites")


@pytest.fixture
def config(folder: Path) -> RunConfig:
    return load_config({"sites": str(folder), "quorum": 2, "min-sites": 2})
