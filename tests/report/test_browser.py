"""The page in a real browser: it loads nothing, fails at nothing and fits a phone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from fedpref.report import write_report

Value = dict[str, Any]

# Elements that stick out of the page at the right, unless a box of their own scrolls them.
OUTSIDE = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll table, svg') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + '.' + e.className)
"""
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory,
    samples: Callable[[Path], tuple[Path, Path]],
) -> list[Path]:
    return [write_report(folder)[0] for folder in samples(tmp_path_factory.mktemp("pages"))]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(browser: Any, pages: list[Path], width: int) -> None:
    for path in pages:
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
        assert browser.evaluate(OUTSIDE) == []
        assert browser.evaluate(SCROLLS) is False
        # Wide tables do scroll, each in its own box.
        wide = "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
        assert browser.evaluate(wide) is (width == 390)


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
    assert browser.evaluate(OUTSIDE) == ["P."]
    assert browser.evaluate(SCROLLS) is True
