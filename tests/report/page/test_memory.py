"""Memory over time: the peak is the arena's, and remaining copies are listed with the reason."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import pimflow
from pimflow.api.reports import content_of
from pimflow.report.page.memory import memory_chart, movements
from pimflow.report.page.run import Content


@pytest.fixture(scope="module")
def content() -> Content:
    return content_of(pimflow.compile("zoo:toy", policy="md-dp", use_cache=False), what_if=0)


def test_the_area_reaches_the_peak_and_the_end(content: Content) -> None:
    usage = content.runs[0].usage(content.numbers[0])
    chart = memory_chart([usage])
    (path,) = re.findall(r'<path d="([^"]+)" class="area"', chart)
    heights = [float(y) for y in re.findall(r"V([\d.]+)H", path)]
    ends = [float(x) for x in re.findall(r"H([\d.]+)", path)]
    assert ends[-1] == 1168
    assert len(heights) == usage.memory.steps
    scale = (230 - min(heights)) / usage.memory.live_bytes
    arena = float(re.findall(r'y1="([\d.]+)" y2="[\d.]+" class="limit"', chart)[0])
    assert (230 - arena) / usage.memory.arena_bytes == pytest.approx(scale, rel=1e-3)
    assert f"peak {usage.memory.live_bytes / 1e6:.4f}"[:11] in chart


def test_movements_are_counted(content: Content) -> None:
    usage = content.runs[0].usage(content.numbers[0])
    told = movements(usage)
    free, kept = len(usage.memory.eliminated), len(usage.memory.kept)
    assert f"{free} of {free + kept} Slice" in told
    assert told.count('class="mark"') == kept


def test_labels_of_equal_peaks_are_above_each_other(content: Content) -> None:
    usage = content.runs[0].usage(content.numbers[0])
    chart = memory_chart([replace(usage, label=label) for label in "AB"])
    heights = {label[0]: float(y) for y, label in re.findall(r'y="([\d.]+)" class="value"[^>]*>([AB]: peak)', chart)}
    assert heights["A"] - heights["B"] == 14
    assert heights["B"] > 10
