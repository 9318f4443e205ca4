"""The page of a sweep: its content without a script, with hostile names as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest

import pimflow
from pimflow.sweeps.page.page import sweep_page
from support.hostile import NAMES, hostile_model

STUDY: dict[str, Any] = {
    "models": ["zoo:toy"],
    "policies": ["md-dp", "pimflow"],
    "objectives": ["time_us", "energy_mj", "pim.channels"],
    "grid": {"pim.channels": [4, 8, 40], "gpu.launch_cycles": [1000, 3000]},
}


class Page(HTMLParser):
    """Marks of points by kind, and texts; checked to be properly nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.marks: dict[str, set[str]] = {}
        self.links: list[str] = []
        self.commands: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.attributes |= given.keys()
        if "data-p" in given:
            self.marks.setdefault(tag, set()).add(given["data-p"])
        if tag == "a":
            self.links.append(given["href"])
        if "data-command" in given:
            self.commands.append(given["data-command"])
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    pimflow.sweep({**STUDY, "options": {"grid": 20}}, folder, jobs=1, reports=2)
    return folder


def test_every_point_is_in_every_panel(folder: Path) -> None:
    page = Page((folder / "report.html").read_text())
    text = " ".join(page.texts)
    ok = {str(number) for number in range(8)}
    assert page.marks["circle"] == page.marks["path"] == ok
    assert page.marks["tr"] == {str(number) for number in range(12)}
    assert page.marks["g"] <= ok
    assert 4 <= len(page.marks["g"]) <= len(ok)  # cells: two numbers of channels by two launch costs, and by policies
    for words in ("Which points are best", "From settings to objectives", "What each key does", "Every point"):
        assert words in text
    for words in ("gpu.launch_cycles on time_us", "energy_mj (smaller is better)", "must be below gpu.memory_channels"):
        assert words in text


def test_a_point_has_its_report_and_the_command_that_compiles_it(folder: Path, tmp_path: Path) -> None:
    page = Page((folder / "report.html").read_text())
    assert len(page.links) == 2
    for link in page.links:
        assert "Where the time goes" in (folder / link).read_text()
    command = next(command for command in page.commands if "pim.channels=8" in command)
    assert command == (
        "pimflow compile zoo:toy --policy md-dp --target pimflow "
        "--set pim.channels=8 --set gpu.launch_cycles=1000 --grid 20"
    )


def test_existing_reports_stay(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "reports").iterdir()}
    pimflow.sweep({**STUDY, "options": {"grid": 20}}, folder, jobs=1, reports=3)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "reports").iterdir()}
    assert len(after) == 3
    assert before.items() < after.items()


def test_hostile_names_are_text(tmp_path: Path) -> None:
    model = tmp_path / "<script>document.title='owned'<!--\u2028\x1b[31m.onnx"
    onnx.save(hostile_model(), model)
    html = sweep_page(pimflow.sweep({**STUDY, "models": [str(model)]}, jobs=1), {})
    plain = Page(sweep_page(pimflow.sweep(STUDY, jobs=1), {}))
    page = Page(html)
    assert page.attributes == plain.attributes
    assert html.count("<script") == 1
    assert "owned" in " ".join(page.texts)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028\u2029]", html)
    assert not set(NAMES) & set(html.split())


@pytest.mark.parametrize(
    "change",
    [
        {"objectives": ["time_us"]},
        {"objectives": ["-speedup", "time_us"]},
        {"grid": {}},
        {"grid": {"pim.channels": [40]}},
        {"models": ["zoo:toy", "zoo:gcn"], "policies": ["md-dp"]},
    ],
)
def test_any_sweep_has_a_page(change: dict[str, Any]) -> None:
    result = pimflow.sweep({**STUDY, **change}, jobs=1)
    page = Page(sweep_page(result, {}))
    assert len(page.marks["tr"]) == len(result)
    assert result.text()
