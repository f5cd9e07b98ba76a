"""Teachers: frozen sources of candidates, one file a back end."""

from fedpref.preference.teachers.base import Teacher
from fedpref.preference.teachers.choice import make_teachers

__all__ = ["Teacher", "make_teachers"]
