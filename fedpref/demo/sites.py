"""Six synthetic demo sites: one pooled cohort, allocated to sites, worded in each site's style."""

import fcntl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import fedpref
from fedpref.data import Annotation, Report, SiteDirectory, allocate, site_directories, write_site
from fedpref.data.cohort import case_labels
from fedpref.data.text import duplicate_key, normalise_report
from fedpref.demo.cases import Case, annotation, sample_case
from fedpref.demo.generate import render
from fedpref.demo.styles import STYLES
from fedpref.files import atomic_dir, fedpref_home
from fedpref.hashing import digest, digest_file
from fedpref.preference import build_pairs, generate, make_teachers

SHARES: Final = (0.28, 0.22, 0.18, 0.14, 0.10, 0.08)
DEFAULT_SEED: Final = 20260713
_PATIENTS_WITH_TWO: Final = 0.10  # share of patients who have two reports
_REDRAWS: Final = 200
_TEACHERS: Final = "rules"
_DECIDING_PACKAGES: Final = ("task", "data", "preference", "demo")


@dataclass(frozen=True)
class DemoSettings:
    """Sizes of the pooled cohort in reports, and how it is divided (see `data.partition`).

    `skew` is above the 0.7 used elsewhere: among so few reports 0.7 hardly differs from chance.
    """

    train_reports: int = 520
    dev_reports: int = 540
    test_reports: int = 270
    alpha: float = 0.5
    skew: float = 0.9

    def splits(self) -> tuple[tuple[str, int], ...]:
        """Return each split and its number of reports, in the order in which they are drawn."""
        return (
            ("train", self.train_reports),
            ("dev", self.dev_reports),
            ("test", self.test_reports),
        )


def ensure_demo_sites(
    root: Path | None = None,
    *,
    settings: DemoSettings | None = None,
    seed: int = DEFAULT_SEED,
) -> Path:
    """Return the folder of the demo sites with candidates and pairs, made on the first call.

    The folder stands under `root` (default: `demo` in $FEDPREF_HOME, else in ./.fedpref) and is
    named by the hash of everything that decides its content. It appears whole or not at all, and
    processes that ask at the same time wait for the one that makes it.
    """
    settings = settings or DemoSettings()
    root = (root or fedpref_home() / "demo").absolute()
    folder = root / content_key(settings, seed)
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with atomic_dir(folder) as part:
                write_demo_sites(part, settings=settings, seed=seed)
                add_pairs(part)
    return folder


def content_key(settings: DemoSettings, seed: int) -> str:
    """Return a short hash of settings, seed and the code and tables that make the sites."""
    package = Path(fedpref.__file__).parent
    sources = {
        path.relative_to(package).as_posix(): digest_file(path)
        for name in _DECIDING_PACKAGES
        for path in (package / name).rglob("*")
        if path.suffix in {".py", ".toml"}
    }
    return digest([asdict(settings), seed, sources])[:16]


def add_pairs(folder: Path) -> None:
    """Write every rule teacher's candidates and the pairs of each site in the folder."""
    teachers = make_teachers(_TEACHERS)
    for path in site_directories(folder):
        site = SiteDirectory.load(path)
        for teacher in teachers:
            generate(site, teacher)
        build_pairs(
            site,
            [teacher.name for teacher in teachers],
            teacher_hashes={teacher.name: teacher.digest for teacher in teachers},
        )


def site_names() -> tuple[str, ...]:
    """Return the folder names of the demo sites, largest site first."""
    return tuple(f"site-{number}" for number in range(1, len(SHARES) + 1))


def write_demo_sites(
    folder: Path, *, settings: DemoSettings | None = None, seed: int = DEFAULT_SEED
) -> list[Path]:
    """Write six site directories into `folder` and return them, largest first.

    Patients are disjoint between splits and sites; no text occurs twice. Training profiles of the
    sites' case mix also shape dev and test, whose draws are seeded by `seed` + 1 and + 2.
    """
    settings = settings or DemoSettings()
    reports: list[list[Report]] = [[] for _ in SHARES]
    annotations: list[list[Annotation]] = [[] for _ in SHARES]
    profiles: NDArray[np.float64] | None = None
    seen: set[str] = set()
    for number, (split, count) in enumerate(settings.splits()):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        cases = [sample_case(rng) for _ in range(count)]
        patients = _patients(rng, count, split)
        notes = [
            Annotation(f"demo-{split}-{row:04d}", annotation(case))
            for row, case in enumerate(cases, start=1)
        ]
        allocation = allocate(
            case_labels(notes),
            np.array(SHARES),
            alpha=settings.alpha,
            skew=settings.skew,
            seed=seed + number,
            profiles=profiles,
            groups=patients,
        )
        profiles = allocation.profiles
        for case, note, patient, at in zip(cases, notes, patients, allocation.site, strict=True):
            site = int(at)
            text = _new_text(case, site, rng, seen)
            reports[site].append(Report(note.report_id, patient, split, text))
            annotations[site].append(note)
    paths = []
    for name, style, site_reports, site_annotations in zip(
        site_names(), STYLES, reports, annotations, strict=True
    ):
        paths.append(folder / name)
        write_site(
            folder / name,
            name=name,
            description=f"synthetic demo data, no real patient ({style.name})",
            synthetic=True,
            reports=site_reports,
            annotations=site_annotations,
        )
    return paths


def _patients(rng: np.random.Generator, reports: int, split: str) -> list[str]:
    """Return the patient of each report; some patients have two reports, one after the other."""
    patients: list[str] = []
    while len(patients) < reports:
        times = 2 if rng.random() < _PATIENTS_WITH_TWO else 1
        patients += [f"demo-patient-{split}-{len(patients) + 1:04d}"] * times
    return patients[:reports]


def _new_text(case: Case, site: int, rng: np.random.Generator, seen: set[str]) -> str:
    """Return the case in the site's words, as no report before it has put it."""
    for _ in range(_REDRAWS):
        text = normalise_report(render(case, STYLES[site], rng).text)
        key = duplicate_key(text)
        if key not in seen:
            seen.add(key)
            return text
    raise RuntimeError("the generator repeats itself: the cohort is too large for its phrases")
