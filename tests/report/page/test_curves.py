"""Lines over a setting: points at their values, and names at the ends of lines that do not overlap."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.report.page.bars import Series
from pimflow.report.page.curves import CurvePanel, curves, spread

SERIES = (Series("first", "d0"), Series("second", "d1"))


def test_points_are_where_their_values_are() -> None:
    panel = CurvePanel("t", "channels", [4, 8, 16], [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    chart = curves(SERIES, [panel], unit="x", base=1.0)
    points = [(float(x), float(y)) for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)" r="3.4"', chart)]
    (x0, y0), (x1, y1), (x2, y2), *flat = points
    assert x2 - x1 == pytest.approx(2 * (x1 - x0), abs=0.02)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.02)
    assert {y for _, y in flat} == {y0}
    assert "first, channels 8: 2.000" in chart


def test_panels_share_one_scale() -> None:
    low, high = (CurvePanel("t", "s", [1, 2], [[value, value]]) for value in (1.0, 5.0))
    chart = curves(SERIES[:1], [low, high], unit="x", base=0.0)
    heights = re.findall(r'cy="([^"]+)" r="3.4"', chart)
    assert float(heights[0]) > float(heights[2])


@settings(max_examples=200)
@given(st.lists(st.floats(0, 300), max_size=9))
def test_names_keep_their_order_and_do_not_cover_each_other(places: list[float]) -> None:
    found = spread(places, 15.0)
    order = sorted(range(len(places)), key=lambda index: places[index])
    assert all(found[b] - found[a] >= 15.0 - 0.02 for a, b in pairwise(order))
    assert sum(found) == pytest.approx(sum(places), abs=0.01 * len(places) + 1e-6)


def test_names_with_room_stay_where_they_are() -> None:
    assert spread([100.0, 40.0, 70.0], 15.0) == [100.0, 40.0, 70.0]
    assert spread([10.0, 10.0, 90.0], 10.0) == [5.0, 15.0, 90.0]


def test_names_are_text_never_markup() -> None:
    hostile = '<script>alert("x")</script>\n'
    panel = CurvePanel(hostile, hostile, [1, 2], [[1.0, 2.0]])
    chart = curves([Series(hostile, "d0")], [panel], unit=hostile, base=1.0)
    assert "<script" not in chart
    ElementTree.fromstring(chart)


def test_one_setting_and_equal_values_are_drawn() -> None:
    chart = curves(SERIES[:1], [CurvePanel("t", "s", [3], [[1.0]])], unit="x", base=1.0)
    assert chart.count("<circle") == 2
