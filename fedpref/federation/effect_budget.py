"""How many questions for an effect a site answers: each answer tells a little more about it."""

import json
from pathlib import Path
from typing import Final

from fedpref.errors import DataError
from fedpref.evaluation.federated_bootstrap import Withheld
from fedpref.files import atomic_write

# No federation id begins with a dot: the file lies beside the federations' folders.
BUDGET_FILE: Final = ".effect-questions.json"


def over_budget(state: Path, question: str, limit: int) -> Withheld | None:
    """Return why the question with this digest gets no totals, or None if it may.

    A question that was answered before may be asked again: its draws are the same. Raises DataError
    if the record of answered questions was changed.
    """
    answered = _answered(state)
    if question in answered or len(answered) < limit:
        return None
    return Withheld(
        f"the site answers at most {limit} different questions (effect_questions in site.toml)"
    )


def record_answer(state: Path, question: str) -> None:
    """Write down that the question with this digest was answered."""
    answered = _answered(state)
    if question not in answered:
        atomic_write(state / BUDGET_FILE, json.dumps([*answered, question], indent=0) + "\n")


def _answered(state: Path) -> list[str]:
    path = state / BUDGET_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise DataError(
            "the file does not hold the digests of the questions that the site has answered",
            why="without it nobody knows how many there were",
            fix="restore it, or delete it to begin at none",
            file=path,
        )
    return found
