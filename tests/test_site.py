"""The docs site as `.ci/run` builds it: from files, in a real browser, without network requests."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Browser, find_browser

SITE = Path(os.environ.get("PIMFLOW_SITE") or "no-site")
PAGES = ("index", "tutorial", "notebook", "reference", "cli", "results", "changelog", "howto/try-machines")

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="no site was built: mkdocs build -d FOLDER, and PIMFLOW_SITE=FOLDER"
)


def test_the_notebook_was_run_and_its_page_has_every_output() -> None:
    cells = json.loads((Path(__file__).parent.parent / "docs" / "notebook.ipynb").read_text())["cells"]
    page = (SITE / "notebook.html").read_text(encoding="utf-8")
    assert page.count('class="output"') >= sum(cell["cell_type"] == "code" for cell in cells) > 5
    assert page.partition("<article")[2].count("<svg") >= 3
    assert "passed: 1 output of " in page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("Chromium is not installed")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def complaints(browser: Browser) -> list[dict[str, Any]]:
    """What a page logs, throws, or requests from a network; files are allowed."""
    asked = {"Network.requestWillBeSent"}
    events = browser.complaints()
    return [
        event
        for event in events
        if event["method"] not in asked or not event["params"]["request"]["url"].startswith("file:")
    ]


def test_no_page_names_a_file_from_elsewhere() -> None:
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text()
        foreign = re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^\"'> ]+", text)
        foreign += re.findall(r"<link[^>]+href=[\"']?(?:https?:)?//[^\"'> ]+", text)
        assert foreign == [], page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_files_and_fits_a_phone(name: str, browser: Browser) -> None:
    browser.open(SITE / f"{name}.html")
    assert complaints(browser) == []
    assert browser.evaluate("document.querySelector('h1').innerText.length") > 3
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_the_search_works_from_files(browser: Browser) -> None:
    browser.open(SITE / "index.html")
    browser.evaluate("document.querySelector('.md-search__input').focus()")
    browser.evaluate(
        "document.querySelector('.md-search__input').value = 'gwrite latency';"
        "document.querySelector('.md-search__input').dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))"
    )
    end = time.monotonic() + 60
    while not browser.evaluate("document.querySelectorAll('.md-search-result__item').length"):
        assert time.monotonic() < end, "nothing was found"
        time.sleep(0.1)
    assert "Targets" in browser.evaluate("document.querySelector('.md-search-result__list').innerText")
    assert complaints(browser) == []


def test_the_report_is_in_its_page(browser: Browser) -> None:
    browser.open(SITE / "example-report.html")
    frame = browser.evaluate("document.querySelector('iframe.report').getAttribute('src')")
    browser.open(SITE / frame)
    assert "mobilenet-v2" in browser.evaluate("document.title")
    assert complaints(browser) == []


def test_outputs_of_the_notebook_are_shown(browser: Browser) -> None:
    browser.open(SITE / "notebook.html")
    assert browser.evaluate("document.querySelectorAll('.output svg.chart').length") >= 3
