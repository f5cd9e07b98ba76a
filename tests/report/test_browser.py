"""The page in a real browser: it loads nothing, fails at nothing and fits a phone."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedpref.report import write_report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

# A phone makes its viewport as wide as what it shows, so that the width that was set is compared.
# Elements that stick out of the page at the right, unless a box of their own scrolls them.
OUTSIDE = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll table, svg') && e.getBoundingClientRect().right > WIDTH + 1)
  .map(e => e.tagName + '.' + e.className)
"""
SCROLLS = "document.documentElement.scrollWidth > WIDTH"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(browser: Any, written: dict[str, Path], width: int) -> None:
    for folder in written.values():
        path = folder / "report" / "report.html"
        browser.open(path, width=width)
        requests = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        outside = [u for u in requests if u != path.as_uri() and not u.startswith("data:")]
        assert path.as_uri() in requests
        assert outside == []
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        assert [event for event in browser.events if event.get("method") in bad] == []
        assert browser.evaluate("document.querySelectorAll('table').length") > 8
        assert browser.evaluate("document.querySelector('svg').getBoundingClientRect().width") > 200
        assert browser.evaluate(OUTSIDE.replace("WIDTH", str(width))) == []
        assert browser.evaluate(SCROLLS.replace("WIDTH", str(width))) is False
        # Wide tables do scroll, each in its own box.
        wide = "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
        assert browser.evaluate(wide) or width > 390


def test_no_table_of_six_sites_scrolls_on_a_wide_screen(
    browser: Any, comparison: dict[str, Any], write_comparison: Any
) -> None:
    text = json.dumps(comparison).replace("site-4", "north-london")
    path = write_report(write_comparison(json.loads(text)))[0]
    browser.open(path, width=1280)
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => e.getAttribute('aria-labelledby'))"
    ) == []  # fmt: skip


def test_the_checks_of_this_file_can_fail(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'>"
        "<p style='width:900px'>wide</p><img src='http://127.0.0.1:9/x.png'><script>f()</script>"
    )
    browser.open(path, width=390)
    methods = {event.get("method") for event in browser.events}
    assert "Runtime.exceptionThrown" in methods
    assert any("127.0.0.1" in str(event) for event in browser.events)
    assert browser.evaluate(OUTSIDE.replace("WIDTH", "390")) == ["P."]
    assert browser.evaluate(SCROLLS.replace("WIDTH", "390")) is True
