"""The page in a real browser, if there is one: filled and linked, without complaints or requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pimflow
from support.browser import Browser, find_browser
from support.hostile import hostile_model

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    browser = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def compiled() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)


@pytest.fixture
def page(browser: Browser, compiled: pimflow.CompiledModel, tmp_path: Path) -> Browser:
    browser.open(pimflow.html_report(compiled).save(tmp_path / "page.html"))
    return browser


def count(browser: Browser, what: str) -> int:
    return int(browser.evaluate(f"document.querySelectorAll({what!r}).length"))


def test_it_is_filled_without_complaints(page: Browser, compiled: pimflow.CompiledModel) -> None:
    assert page.complaints() == []
    costly = [row for row in compiled.report.nodes if row.time_us]
    assert count(page, "#nodes-table tbody tr:not(.hidden)") == len(costly)
    events = [event for event in compiled.timeline.events if event.end_us > event.start_us]
    assert count(page, ".gantt rect.bar") == len(events)
    for panel in ("gains", "schedule", "nodes", "parts", "roofline", "memory"):
        assert page.evaluate(f"document.querySelector('#{panel}').getBoundingClientRect().height") > 60, panel
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_click_is_followed_everywhere(page: Browser) -> None:
    row = "[...document.querySelectorAll('#nodes-table tbody tr')].find((row) => row.cells[1].textContent === 'conv2')"
    page.evaluate(f"{row}.scrollIntoView()")
    x, y = page.evaluate(f"(({{x, y}}) => [x + 60, y + 8])({row}.getBoundingClientRect())")
    page.press(x, y)
    number = page.evaluate(f"{row}.dataset.n")
    for panel in ("gains", "schedule", "nodes", "roofline"):
        found = page.evaluate(f"[...document.querySelectorAll('#{panel} .mark.on')].map((mark) => mark.dataset.n)")
        assert found, panel
        assert all(number in marks.split() for marks in found)
    told = page.evaluate("document.querySelector('#inspector').innerText")
    assert "conv2" in told
    assert "GPU alone" in told, "the alternatives"
    assert count(page, ".of-node[width='0']") < count(page, ".of-node")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert count(page, ".mark.on") == 0
    assert page.evaluate("document.querySelector('#inspector').hidden")
    assert page.complaints() == []


def test_search_filter_and_sort(page: Browser) -> None:
    page.evaluate("document.querySelector('#search').focus()")
    page.call("Input.insertText", text="DEPTHWISE")
    shown = (
        "[...document.querySelectorAll('#nodes-table tbody tr:not(.hidden)')].map((row) => row.cells[1].textContent)"
    )
    assert page.evaluate(shown)[0] == "depthwise"
    assert count(page, "#schedule rect.bar.off") > 0
    page.evaluate("document.querySelector('#clear').click()")
    page.evaluate("document.querySelector('[data-device=pim]').click()")
    assert set(page.evaluate(shown)) == {"conv1", "conv2", "linear"}
    page.evaluate("document.querySelector('#clear').click()")
    page.evaluate("document.querySelectorAll('#nodes-table thead button')[4].click()")
    rows = "[...document.querySelectorAll('#nodes-table tbody tr:not(.hidden)')]"
    times = page.evaluate(f"{rows}.map((row) => Number(row.cells[4].dataset.v))")
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 2


def test_the_schedule_zooms_is_brushed_and_unfolds(page: Browser, compiled: pimflow.CompiledModel) -> None:
    page.evaluate("document.querySelector('.gantt').scrollIntoView()")
    ground = "document.querySelector('.gantt .ground').getBoundingClientRect()"
    left, width, y = page.evaluate(f"(({{left, width, top}}) => [left, width, top + 12])({ground})")
    page.press(left + 2, y, left + width * 0.02)
    assert page.evaluate("document.querySelector('#brushed').textContent").startswith("0")
    assert count(page, "#nodes-table tbody tr:not(.hidden)") == 1, "the first node runs then, and no other"
    view = "document.querySelector('.gantt svg.time').viewBox.baseVal.width"
    whole = page.evaluate(view)
    assert whole == pytest.approx(compiled.timeline.makespan_us, rel=1e-5)
    page.evaluate("document.querySelector('[data-zoom=brush]').click()")
    assert page.evaluate(view) < whole / 20
    page.evaluate("document.querySelector('[data-zoom=fit]').click()")
    assert page.evaluate(view) == pytest.approx(whole)
    page.evaluate("document.querySelector('.gantt .fold').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    lanes = sum(len(lanes) for lanes in map(lanes_of(compiled).get, compiled.programs) if lanes)
    assert count(page, ".lanes rect.mark") == lanes > 16
    assert page.complaints() == []


def lanes_of(compiled: pimflow.CompiledModel) -> dict[str, tuple[object, ...]]:
    from pimflow.api.reports import content_of

    return dict(content_of(compiled, what_if=0).runs[0].lanes)


def test_complaints_are_detected(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for body in ("<script>console.error(1)</script>", "<script>null.x</script>", "<img src='http://127.0.0.1:9/x'>"):
        path.write_text(f"<!DOCTYPE html><title>x</title><body>{body}</body>")
        browser.open(path)
        assert browser.complaints() != [], body


def test_hostile_names_are_shown_and_not_obeyed(browser: Browser, tmp_path: Path) -> None:
    compiled = pimflow.compile(hostile_model(), policy="md-dp", use_cache=False)
    alone = pimflow.compile(hostile_model(), policy="gpu", use_cache=False)
    for name, report in (("one", pimflow.html_report(compiled)), ("two", pimflow.html_report(alone, compiled))):
        browser.open(report.save(tmp_path / f"{name}.html"))
        for number in range(len(compiled.report.nodes)):
            browser.evaluate(f"document.querySelector('#nodes-table tr[data-n=\"{number}\"]').click()")
        assert browser.complaints() == []
        assert "pimflow report" in browser.evaluate("document.title")
        assert count(browser, "script") == 2
        assert count(browser, "img") == 0
