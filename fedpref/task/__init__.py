"""The task contract: ontology, prompt, projection, canonical structure, scoring. Pure."""

from fedpref.task.ontology import ONTOLOGY, Ontology, load_ontology, ontology_of
from fedpref.task.projection import Projection, project
from fedpref.task.prompt import PROMPT_STYLES, PromptStyle, messages, prompt_digest
from fedpref.task.scoring import MatchCounts, Score, match_counts, score
from fedpref.task.structure import Finding, Ignore, Structure

__all__ = [
    "ONTOLOGY",
    "PROMPT_STYLES",
    "Finding",
    "Ignore",
    "MatchCounts",
    "Ontology",
    "Projection",
    "PromptStyle",
    "Score",
    "Structure",
    "load_ontology",
    "match_counts",
    "messages",
    "ontology_of",
    "project",
    "prompt_digest",
    "score",
]
