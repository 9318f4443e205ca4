"""Points are at the positions given by their work and times, and below the roofs."""

from __future__ import annotations

import re

import pytest

from pimflow.codegen.answers import Roof
from pimflow.report.page.roofline import Ceiling, Point, roofline

CEILING = Ceiling("GPU", "d0", Roof(10e6, 1e6))


def test_points_and_roofs_share_their_axes() -> None:
    below = Point(3, "a", "d0", 1.0, 0.5e6, 0.5e6)
    at_ridge = Point(4, "b", "d0", 10.0, 10e6, 5e6)
    chart = roofline([CEILING], [below, at_ridge])
    (path,) = re.findall(r'<path d="M([^"]+)" class="roof d0"', chart)
    places = [tuple(map(float, place.split())) for place in path.split("L")]
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4.2"', chart)
    first, second = (tuple(map(float, place)) for place in found)
    assert second == pytest.approx(places[1], abs=0.1), "a node at the peak and the ridge is the corner of the roof"
    slope = (places[1][1] - places[0][1]) / (places[1][0] - places[0][0])
    above = places[1][1] + slope * (first[0] - places[1][0])
    assert first[1] > above + 5, "half of what its memory delivers is below the roof"
    assert chart.count('class="was"') == 1, "only where the host alone is another rate"


def test_without_work_there_is_no_chart() -> None:
    assert "<svg" not in roofline([CEILING], [])
