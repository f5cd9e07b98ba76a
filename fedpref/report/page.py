"""The page: one HTML file that needs nothing else, no script, no network.

jinja2 is imported when a page is rendered only: the package is importable without it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from fedpref.report import leaves
from fedpref.report.comparison import findings
from fedpref.report.figures import Picture
from fedpref.report.locked_test import LockedTest, locked_test_sentences
from fedpref.report.result import Comparison, Run, RunConfigFile
from fedpref.report.tables import CODE, TEXT, Column, Table

_FOOTER: Final = (
    "Made by fedpref report from the files in the folder above this page; the tables lie beside it "
    "as CSV and Markdown, the figures as PNG and SVG. F1 values are micro-F1 of loc+dis findings "
    "on dev reports unless they say otherwise. Client mean: unweighted over sites. Worst site: the "
    "lowest site, per seed, then averaged. No data is never counted as 0."
)


@dataclass(frozen=True)
class Figure:
    """A picture as the page shows it: one inline SVG a panel."""

    name: str
    caption: str
    svgs: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """One part of the page, in the order sentences, paragraphs, figures, tables."""

    key: str
    title: str
    sentences: tuple[str, ...] = ()
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    kind: str
    heading: str
    facts: tuple[tuple[str, str], ...]
    synthetic: bool
    sections: tuple[Section, ...]
    footer: str = _FOOTER


def comparison_page(
    result: Comparison,
    tables: Mapping[str, Table],
    pictures: Mapping[str, Picture],
    locked_test: LockedTest | None = None,
) -> Page:
    """Return the page of a comparison; without a locked test it says so."""
    seeds = ", ".join(str(seed) for seed in result.seeds)
    sections = (
        Section(
            "results",
            "Results",
            sentences=(*findings(result), *(f"{note}." for note in result.notes)),
            tables=_pick(tables, "headline", "effects", "measures"),
        ),
        *([_locked_section(locked_test, tables)] if result.can_be_tested else []),
        Section(
            "trajectories",
            "Over the rounds",
            figures=_figures(pictures, "trajectories"),
            tables=_pick(tables, "trajectories", "effects-by-round"),
        ),
        Section(
            "sites",
            "By site",
            figures=_figures(pictures, "site-effects"),
            tables=_pick(tables, "sites", "sites-disease"),
        ),
        Section(
            "audit",
            "How unequal the sites are",
            tables=_named(tables, "audit-"),
        ),
        _contrast_section(tables),
        _federation_section(tables, pictures),
        _leaves_section(tables),
        Section(
            "configuration",
            "Configuration",
            paragraphs=(f"Hash of the configuration: {result.digest}", f"Training seeds: {seeds}"),
            tables=_pick(tables, "configuration", "runs", "versions"),
        ),
    )
    return Page(
        title=f"FedPref comparison {result.run}",
        kind="FedPref: comparison under matched exposure",
        heading=result.run,
        facts=(
            ("Sites", str(len(result.sites))),
            ("Seeds", str(len(result.seeds))),
            ("Rounds", f"0 to {result.rounds}"),
            (
                "Compared round" if result.of_strategies else "Selected round",
                str(result.selected_round),
            ),
            ("Configuration", result.digest[:12]),
        ),
        synthetic=result.synthetic,
        sections=_filled(sections),
    )


def run_page(
    run: Run,
    config: RunConfigFile,
    tables: Mapping[str, Table],
    pictures: Mapping[str, Picture],
) -> Page:
    """Return the page of one run."""
    sections = (
        Section(
            "rounds",
            "Over the rounds",
            figures=_figures(pictures, "rounds"),
            tables=_pick(tables, "rounds", "measures"),
        ),
        Section("sites", "By site", tables=_pick(tables, "sites", "sites-disease", "left-out")),
        _contrast_section(tables),
        _federation_section(tables, pictures),
        _leaves_section(tables),
        Section(
            "configuration",
            "Configuration",
            paragraphs=(f"Hash of the configuration: {config.digest}",),
            tables=_pick(tables, "configuration", "versions"),
        ),
    )
    return Page(
        title=f"FedPref run {run.run}",
        kind=f"FedPref: one run, strategy {run.strategy}",
        heading=run.run,
        facts=(
            ("Federation", run.federation),
            ("Sites", str(len(run.sites))),
            ("Rounds", f"0 to {run.rounds[-1].round}"),
            ("Configuration", run.digest[:12]),
        ),
        synthetic=run.synthetic,
        sections=_filled(sections),
    )


def leaves_tables() -> dict[str, Table]:
    """Return what leaves a site, a table a kind of message."""
    return {
        f"leaves-{message.key}": Table(
            name=f"leaves-{message.key}",
            title=message.title,
            columns=(Column("field", "Field", CODE), Column("what", "What it is", TEXT)),
            rows=tuple((", ".join(field.names), field.what) for field in message.fields),
            notes=message.notes,
        )
        for message in leaves.MESSAGES
    }


def render(page: Page) -> str:
    """Return the page as HTML; every text of a result is escaped."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  (see the module's docstring)
    from markupsafe import Markup  # noqa: PLC0415

    here = files(__package__)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True
    )
    environment.filters["svg"] = Markup
    template = environment.from_string(here.joinpath("page.html.j2").read_text("utf-8"))
    # Our own stylesheet, which holds nothing of a result.
    style = Markup(here.joinpath("style.css").read_text("utf-8").rstrip())
    return template.render(page=page, style=style)


def inline_svg(svg: str, prefix: str, title: str, description: str) -> str:
    """Return an SVG file's content for use inside HTML.

    Ids get the prefix, because those of several figures would clash in one page. A screen reader
    is told title and description instead of the single texts.
    """
    body = svg[svg.index("<svg") :].strip()
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    start, rest = body.split(">", 1)
    label = f'role="img" aria-labelledby="{prefix}-title {prefix}-description"'
    return (
        f'{start} {label}><title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-description">{escape(description)}</desc>{rest}'
    )


def _figures(pictures: Mapping[str, Picture], name: str) -> tuple[Figure, ...]:
    if name not in pictures:
        return ()
    picture = pictures[name]
    svgs = tuple(
        inline_svg(svg, f"{name}-{number}", picture.title, picture.description)
        for number, svg in enumerate(picture.panels)
    )
    return (Figure(name, picture.caption, svgs),)


def _leaves_section(tables: Mapping[str, Table]) -> Section:
    return Section(
        "leaves",
        "What left each site",
        paragraphs=(leaves.NEVER, leaves.FAILURE, leaves.LIMITS),
        tables=_named(tables, "leaves-"),
    )


def _locked_section(test: LockedTest | None, tables: Mapping[str, Table]) -> Section:
    return Section(
        "locked-test",
        "Locked test",
        sentences=locked_test_sentences(test),
        tables=_named(tables, "locked-test"),
    )


def _contrast_section(tables: Mapping[str, Table]) -> Section:
    return Section("contrast", "Candidate contrast", tables=_named(tables, "contrast"))


def _federation_section(tables: Mapping[str, Table], pictures: Mapping[str, Picture]) -> Section:
    return Section(
        "federation",
        "Federation",
        figures=_figures(pictures, "weights"),
        tables=_pick(tables, "weights", "strategy", "strategy-sites", "costs"),
    )


def _named(tables: Mapping[str, Table], start: str) -> tuple[Table, ...]:
    return tuple(table for name, table in tables.items() if name.startswith(start))


def _pick(tables: Mapping[str, Table], *names: str) -> tuple[Table, ...]:
    return tuple(tables[name] for name in names if name in tables)


def _filled(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return the sections that show anything."""
    return tuple(s for s in sections if s.sentences or s.paragraphs or s.figures or s.tables)
