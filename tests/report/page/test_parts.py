"""Stacked bars: segment by segment, as long as the values that they represent."""

from __future__ import annotations

import re

import pytest

from pimflow.report.page.parts import Bar, parts_chart, parts_table

ALONE = Bar("GPU alone", {"gpu": {"launch": 10.0, "compute": 30.0}}, "alone0 time")
PLAN = Bar("auto", {"gpu": {"launch": 5.0}, "pim": {"COMP": 12.0, "fill": 0.0}, "link": {"load": 3.0}})


def test_segments_are_as_long_as_their_amounts() -> None:
    chart = parts_chart("time", "us", [ALONE, PLAN], ("gpu", "pim"))
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="34" class="(\w+) s(\d)"', chart)
    widths = [(hue, float(width)) for _, _, width, hue, _ in found]
    unit = widths[0][1] / 10
    assert [hue for hue, _ in widths] == ["d0", "d0", "d0", "d1", "link"]
    assert [width / unit for _, width in widths] == pytest.approx([10, 30, 5, 12, 3], abs=0.01)
    starts = [float(x) for x, *_ in found]
    assert starts[1] == pytest.approx(starts[0] + widths[0][1], abs=0.02)
    assert starts[0] == starts[2]
    assert [shade for *_, shade in found] == ["0", "1", "0", "0", "0"]
    assert chart.count('class="of-node"') == 1, "of bars whose shares nodes have"


def test_the_table_has_every_part_and_the_sums() -> None:
    table = parts_table("us", [ALONE, PLAN], ("gpu", "pim"))
    rows = [re.sub("<[^>]+>", " ", row).split() for row in table.split("<tr")[2:]]
    assert [row[-2:] for row in rows] == [
        ["10.00", "5.000"],
        ["30.00", "-"],
        ["-", "12.00"],
        ["-", "3.000"],
        ["40.00", "20.00"],
    ]
