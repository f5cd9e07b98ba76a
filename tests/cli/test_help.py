"""What `--help` says of a command's arguments; click 8.5 takes it away from typer's."""

from typer.testing import CliRunner

from fedpref.cli import app


def test_arguments_are_explained() -> None:
    shown = CliRunner().invoke(app, ["report", "--help"]).output
    assert "complete run or comparison" in " ".join(shown.replace("│", " ").split())
