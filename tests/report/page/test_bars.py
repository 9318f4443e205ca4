"""Grouped bars: each is as long as the distance of its value from the base; names of any kind are text."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from pimflow.report.page.bars import BarPanel, Series, grouped_bars, legend

SERIES = (Series("theirs", "d0 s3"), Series("ours", "d1"))
BOX = r'<rect x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)" class="under">'


def boxes(chart: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, found)) for found in re.findall(BOX, chart)]


def test_bars_are_as_long_as_their_distance_from_the_base() -> None:
    panel = BarPanel("speed", [[1.0, 1.5, 0.75], [1.25, 2.0, 1.0]])
    found = boxes(grouped_bars(("a", "b", "c"), SERIES, [panel], unit="x", base=1.0))
    heights = [height for *_, height in found]
    unit = heights[4]  # per distance of 1
    assert heights == pytest.approx([0.0, 0.5 * unit, 0.25 * unit, 0.25 * unit, unit, 0.0], abs=0.03)
    base = found[0][1]
    assert found[1][1] + heights[1] == pytest.approx(base, abs=0.02)  # up
    assert found[2][1] == pytest.approx(base, abs=0.02)  # down


def test_bars_do_not_overlap_and_panels_are_stacked() -> None:
    panel = BarPanel("speed", [[1.0, 2.0], [3.0, 4.0]])
    found = boxes(grouped_bars(("a", "b"), SERIES, [panel, panel], unit="x"))
    first, second = found[:4], found[4:]
    assert all(x + width <= after for (x, _, width, _), (after, *_) in pairwise(sorted(first)))
    assert max(y + height for _, y, _, height in first) < min(y for _, y, *_ in second)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-31.5, -6.6), (1.0, 1.664), (3e-7, 9e6), (-2.0, 5.0)])
def test_everything_is_drawn_between_two_ticks(low: float, high: float) -> None:
    chart = grouped_bars(("a", "b"), SERIES[:1], [BarPanel("t", [[low, high]])], unit="x", height=200.0)
    ticks = [float(y) for y in re.findall(r'<line x1="64" x2="1180" y1="([^"]+)" y2="[^"]+" class="grid">', chart)]
    assert [min(ticks), max(ticks)] == pytest.approx([60.0, 260.0], abs=0.02)
    assert all(y >= 60 - 0.02 and y + height <= 260 + 0.02 for _, y, _, height in boxes(chart))


def test_a_mark_is_at_its_value_over_its_own_bar() -> None:
    panel = BarPanel("speed", [[1.0, 2.0], [3.0, 4.0]], {(1, 0): 4.0})
    chart = grouped_bars(("a", "b"), SERIES, [panel], unit="x", mark="published")
    assert "a, ours: 3.000; published 4.000" in chart
    (in_legend, at) = re.findall(r'd="M([\d.]+) ([\d.]+)l[^"]+" class="published"', chart)
    x, _, width, _ = boxes(chart)[2]  # our bar of a
    top = boxes(chart)[3][1]  # a bar of 4
    assert float(at[0]) == pytest.approx(x + width / 2, abs=0.02)
    assert float(at[1]) + 5 == pytest.approx(top, abs=0.02)
    assert in_legend != at


def test_texts_of_the_legend_do_not_overlap() -> None:
    places = [
        float(x) for x in re.findall(r'<text x="([^"]+)"', legend([Series("W" * 20, "d0"), Series("b", "d1")], "m"))
    ]
    assert places[1] - places[0] > 20 * 6.9
    assert len(places) == 3


def test_names_are_text_never_markup() -> None:
    hostile = '<script>alert("x")</script>\x1b[31m'
    chart = grouped_bars((hostile,), [Series(hostile, "d0")], [BarPanel(hostile, [[1.0]])], unit=hostile)
    assert "<script" not in chart
    assert "\x1b" not in chart
    ElementTree.fromstring(chart)


def test_equal_values_and_only_base_values_are_drawn() -> None:
    assert boxes(grouped_bars(("a",), SERIES, [BarPanel("t", [[0.0], [0.0]])], unit="x"))[0][3] == 0.0
