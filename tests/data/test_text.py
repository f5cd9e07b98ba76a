"""Report text: cleaned once, and found again when it says the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.data.text import duplicate_key, normalise_report


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("Right\u00a0lower\u2011lobe", "Right lower-lobe"),
        ("apical opacity &gt; right", "apical opacity > right"),
        ("\ufeffLungs\x00 clear.\r\n", "Lungs clear."),
        ("Opacity in the left\n lower\n lobe.", "Opacity in the left lower lobe."),
        ("FINDINGS: \n \n Clear.\n IMPRESSION:  None.", "FINDINGS:\nClear.\nIMPRESSION: None."),
        ("1. Clear.\n2. Small effusion\non the left.", "1. Clear.\n2. Small effusion on the left."),
        ("- a\n\u2022 b\n* c", "- a\n\u2022 b\n* c"),
        ("per Dr. ___, XXXX seen", "per Dr. ___, XXXX seen"),
        ("ADDENDUM: left.\n______________________\nFINDINGS: x", "ADDENDUM: left.\nFINDINGS: x"),
        ("a &amp;gt; b ＆lt; c", "a > b < c"),
        ("", ""),
    ],
)
def test_normalise(raw: str, clean: str) -> None:
    assert normalise_report(raw) == clean


@given(st.text())
def test_normalise_is_idempotent(text: str) -> None:
    once = normalise_report(text)
    assert normalise_report(once) == once


def test_duplicate_key() -> None:
    assert duplicate_key("No  effusion. ") == duplicate_key("no effusion..")
    assert duplicate_key("No effusion") != duplicate_key("Effusion")
