"""The site directory: what a hospital prepares, and what a simulated site is.

site.toml          name, description, [policy]
reports.jsonl      report_id, patient_id, split, text, optional home_site
annotations.jsonl  report_id, diseases, findings, optional ignore
candidates/        derived: one file a teacher
pairs.jsonl        derived
state/             what training keeps; never leaves
"""

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from fedpref.data.records import Annotation, Report, nearest, parse_annotation, parse_report
from fedpref.errors import DataError, FedPrefError, raise_all
from fedpref.files import atomic_dir, read_jsonl, write_jsonl
from fedpref.task import ONTOLOGY, Ontology

SITE_FILE = "site.toml"
REPORTS_FILE = "reports.jsonl"
ANNOTATIONS_FILE = "annotations.jsonl"

_Row = TypeVar("_Row", Report, Annotation)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class SitePolicy(_Strict):
    """What the site lets out.

    Evaluation counts over fewer than `min_cell_size` reports are withheld. At most
    `effect_questions` different questions for the draws of an effect are answered, ever.
    """

    min_cell_size: int = Field(default=5, ge=1)
    effect_questions: int = Field(default=20, ge=0)


class SiteInfo(_Strict):
    """The content of `site.toml`."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: str = ""
    synthetic: bool = False  # invented reports: every output of a run says so
    policy: SitePolicy = SitePolicy()


@dataclass(frozen=True, repr=False)
class SiteDirectory:
    """A checked site directory: every report has one annotation, patients keep to one split."""

    path: Path
    info: SiteInfo
    reports: tuple[Report, ...]
    annotations: Mapping[str, Annotation]
    ontology: Ontology = field(default=ONTOLOGY)

    @classmethod
    def load(cls, path: str | Path, ontology: Ontology = ONTOLOGY) -> "SiteDirectory":
        """Return the site of a folder; raises DataError, or FedPrefErrors with all problems."""
        site, problems = _read(Path(path), ontology)
        raise_all(problems)
        assert site is not None
        return site

    @property
    def name(self) -> str:
        """Return the site's name, unique in its federation."""
        return self.info.name

    @property
    def description(self) -> str:
        """Return what the site says of itself."""
        return self.info.description

    @property
    def policy(self) -> SitePolicy:
        """Return what the site lets out."""
        return self.info.policy

    def split(self, name: str) -> tuple[Report, ...]:
        """Return the reports of one split, in file order."""
        return tuple(report for report in self.reports if report.split == name)

    @property
    def candidates_dir(self) -> Path:
        """Return the folder of the teachers' outputs."""
        return self.path / "candidates"

    @property
    def pairs_path(self) -> Path:
        """Return the file of the preference pairs."""
        return self.path / "pairs.jsonl"

    def state_dir(self, federation: str) -> Path:
        """Return the folder in which this site keeps its state of a federation."""
        return self.path / "state" / federation

    def __repr__(self) -> str:
        return f"SiteDirectory({self.name!r}, {len(self.reports)} reports)"


def check_site(path: str | Path, ontology: Ontology = ONTOLOGY) -> list[FedPrefError]:
    """Return everything that is wrong with a site directory; an empty list if nothing is."""
    return _read(Path(path), ontology)[1]


def site_directories(folder: str | Path) -> list[Path]:
    """Return the site directories in a folder, sorted: simulated site *k* is entry *k*."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            "there is no such folder of site directories", file=folder, fix="correct the path"
        )
    return sorted(path.parent for path in folder.glob(f"*/{SITE_FILE}"))


def write_site(
    path: str | Path,
    *,
    name: str,
    description: str = "",
    synthetic: bool = False,
    policy: SitePolicy = SitePolicy(),  # noqa: B008  (frozen)
    reports: Iterable[Report],
    annotations: Iterable[Annotation],
) -> None:
    """Write a whole site directory; a folder that stood there is replaced, or stays untouched."""
    with atomic_dir(Path(path)) as part:
        lines = [f"name = {json.dumps(name)}", f"description = {json.dumps(description)}"]
        lines += ["synthetic = true"] if synthetic else []
        lines += ["", "[policy]"]
        lines += [f"{key} = {value}" for key, value in policy.model_dump().items()]
        (part / SITE_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_jsonl(part / REPORTS_FILE, (report.to_row() for report in reports))
        write_jsonl(part / ANNOTATIONS_FILE, (annotation.to_row() for annotation in annotations))


def _read(path: Path, ontology: Ontology) -> tuple[SiteDirectory | None, list[FedPrefError]]:
    if not path.is_dir():
        error = DataError(
            "there is no such site directory",
            file=path,
            fix="correct the path, or see docs/data.md for what to put there",
        )
        return None, [error]
    problems: list[FedPrefError] = []
    info = _read_info(path / SITE_FILE, problems)
    site = info.name if info else path.name
    bad_reports: list[FedPrefError] = []
    bad_annotations: list[FedPrefError] = []
    reports = _read_rows(path / REPORTS_FILE, parse_report, site, bad_reports)
    annotations = _read_rows(
        path / ANNOTATIONS_FILE, lambda row: parse_annotation(row, ontology), site, bad_annotations
    )
    problems += bad_reports + bad_annotations
    # A bad line is one problem: what it would have matched in the other file is not another one.
    if not reports and not bad_reports:
        problems.append(DataError("there are no reports", file=path / REPORTS_FILE, site=site))
    problems += _patients_in_two_splits(path, site, reports)
    if not bad_annotations:
        problems += _without_annotation(path, site, reports, annotations)
    if not bad_reports:
        problems += _without_report(path, site, reports, annotations)
    if problems or info is None:
        return None, problems
    by_id = {annotation.report_id: annotation for _, annotation in annotations}
    return SiteDirectory(path, info, tuple(r for _, r in reports), by_id, ontology), []


def _read_info(path: Path, problems: list[FedPrefError]) -> SiteInfo | None:
    try:
        return SiteInfo.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        what, fix = f"the file cannot be read ({error.strerror})", 'write one with name = "…"'
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            key, what, fix = ".".join(map(str, item["loc"])), item["msg"], "see docs/data.md"
            if item["type"] == "extra_forbidden":
                table = SitePolicy if len(item["loc"]) > 1 else SiteInfo
                fix = nearest(str(item["loc"][-1]), list(table.model_fields))
                what = "there is no such key"
            elif item["type"] == "string_pattern_mismatch":
                what = "this cannot be the name of a file"
                fix = "use letters, digits, . _ and -, at most 64, and begin with a letter or digit"
            problems.append(DataError(what, file=path, key=key, fix=fix))
        return None
    except ValueError as error:
        what, fix = f"the file is not TOML ({error})", "see docs/data.md"
    problems.append(DataError(what, file=path, fix=fix))
    return None


def _read_rows(
    path: Path,
    parse: Callable[[Mapping[str, Any]], _Row],
    site: str,
    problems: list[FedPrefError],
) -> list[tuple[int, _Row]]:
    """Return (line, record) of the good rows; each bad row and each repeated id is a problem."""
    rows: list[tuple[int, _Row]] = []
    first: dict[str, int] = {}
    lines = read_jsonl(path, on_error=problems.append)
    for line, row in lines:
        try:
            record = parse(row)
        except ValueError as error:
            problems.append(DataError(str(error), file=path, line=line, site=site))
            continue
        if record.report_id in first:
            problems.append(
                DataError(
                    f"report_id repeats that of line {first[record.report_id]}",
                    file=path,
                    line=line,
                    site=site,
                    fix="give every report one row and an id of its own",
                )
            )
        first.setdefault(record.report_id, line)
        rows.append((line, record))
    return rows


def _patients_in_two_splits(
    path: Path, site: str, reports: list[tuple[int, Report]]
) -> list[FedPrefError]:
    problems: list[FedPrefError] = []
    splits: dict[str, dict[str, int]] = defaultdict(dict)
    for line, report in reports:
        seen = splits[report.patient_id]
        if seen and report.split not in seen:
            other, other_line = next(iter(seen.items()))
            problems.append(
                DataError(
                    f"the patient of this {report.split} report also has a {other} report "
                    f"(line {other_line})",
                    why="what was trained on would be tested on",
                    file=path / REPORTS_FILE,
                    line=line,
                    site=site,
                    fix="keep all reports of a patient in one split",
                )
            )
        seen.setdefault(report.split, line)
    return problems


def _without_annotation(
    path: Path,
    site: str,
    reports: list[tuple[int, Report]],
    annotations: list[tuple[int, Annotation]],
) -> list[FedPrefError]:
    annotated = {annotation.report_id for _, annotation in annotations}
    return [
        DataError(
            "the report has no annotation",
            file=path / REPORTS_FILE,
            line=line,
            site=site,
            fix=f"add its row to {ANNOTATIONS_FILE}, or remove the report",
        )
        for line, report in reports
        if report.report_id not in annotated
    ]


def _without_report(
    path: Path,
    site: str,
    reports: list[tuple[int, Report]],
    annotations: list[tuple[int, Annotation]],
) -> list[FedPrefError]:
    known = {report.report_id for _, report in reports}
    return [
        DataError(
            "the annotation belongs to no report",
            file=path / ANNOTATIONS_FILE,
            line=line,
            site=site,
            fix=f"remove it, or add the report to {REPORTS_FILE}",
        )
        for line, annotation in annotations
        if annotation.report_id not in known
    ]
