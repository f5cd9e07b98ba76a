"""From teachers to preference pairs: candidates, pair selection, audit."""

from fedpref.preference.audit import Audit, SplitAudit, TeacherAudit, merge_audits
from fedpref.preference.candidates import Candidate, Generated, generate, read_candidates
from fedpref.preference.dataset import (
    BuiltPairs,
    PreferencePair,
    build_pairs,
    pairs_digest,
    read_pairs,
)
from fedpref.preference.pairs import Pair, select_pair
from fedpref.preference.teachers import Teacher, make_teachers

__all__ = [
    "Audit",
    "BuiltPairs",
    "Candidate",
    "Generated",
    "Pair",
    "PreferencePair",
    "SplitAudit",
    "Teacher",
    "TeacherAudit",
    "build_pairs",
    "generate",
    "make_teachers",
    "merge_audits",
    "pairs_digest",
    "read_candidates",
    "read_pairs",
    "select_pair",
]
