"""The prompt: one constant system message, the report alone as user message."""

import pytest

from fedpref.task import ONTOLOGY, PROMPT_STYLES, Ontology, PromptStyle, messages, prompt_digest

ANIMALS = Ontology("z", ("worm",), ("head", "ear"), {"ear": "head"})


@pytest.mark.parametrize("style", ["full", "compact"])
def test_messages(style: PromptStyle) -> None:
    first, second = messages("report one", style), messages("report {two} %s", style)
    assert [m["role"] for m in first] == ["system", "user"]
    assert first[0] == second[0]
    assert first[1]["content"] == "report one"
    assert second[1]["content"] == "report {two} %s"
    for name in (*ONTOLOGY.diseases, *ONTOLOGY.locations):
        assert name in first[0]["content"]


def test_digest_tells_style_and_ontology_apart() -> None:
    digests = {
        prompt_digest(style, ontology)  # type: ignore[arg-type]
        for style in PROMPT_STYLES
        for ontology in (ONTOLOGY, ANIMALS)
    }
    assert len(digests) == 4


def test_another_ontology_brings_its_own_names() -> None:
    system = messages("x", "full", ANIMALS)[0]["content"]
    assert "worm" in system
    assert "ear -> head" in system
    assert "pneumonia" not in system
