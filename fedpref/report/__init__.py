"""The report of a run or comparison: one page for people, and tables and figures as files.

Importing this package imports neither matplotlib nor jinja2.
"""

from fedpref.report.write import write_report

__all__ = ["write_report"]
