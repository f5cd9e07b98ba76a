"""The report's list of what left a site is the documentation's, and the code's."""

import re
from dataclasses import fields
from pathlib import Path

from fedpref.evaluation.metrics import EvaluationCounts
from fedpref.report import leaves

DOCUMENT = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"


def documented() -> list[set[str]]:
    """The fields of each table of a message: of the numbered sections and the one on request."""
    sections = re.split(r"^## ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for section in sections:
        if not re.match(r"\d|On request", section):
            continue
        rows = re.findall(r"^\| (?!field|---)(.*?) \|", section, flags=re.MULTILINE)
        found.append({name for row in rows for name in (re.findall(r"`(.*?)`", row) or [row])})
    return found


def test_the_report_lists_the_fields_that_the_documentation_lists() -> None:
    listed = [
        {name for field in message.fields for name in field.names} for message in leaves.MESSAGES
    ]
    assert listed == documented()


def test_the_counts_are_those_that_a_site_sends() -> None:
    assert tuple(field.name for field in fields(EvaluationCounts)) == leaves.COUNTS
