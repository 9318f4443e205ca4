"""Steps by kind: however many there are, they add up to the same total."""

from __future__ import annotations

import re

import pytest

from pimflow.report.page.waterfall import Step, grouped_steps, waterfall


def steps(count: int) -> list[Step]:
    return [Step("moved" if index % 3 else "split", f"n{index}", -1.0 - index, (index,)) for index in range(count)]


@pytest.mark.parametrize("count", [0, 1, 5, 36, 37, 500])
def test_they_add_up_and_lose_no_node(count: int) -> None:
    given = [*steps(count), Step("stays", "kept", 2.5, (count,)), Step("stays", "still", 0.0, (count + 1,))]
    found = grouped_steps(given, most=36)
    assert sum(step.change_us for step in found) == pytest.approx(sum(step.change_us for step in given))
    assert sorted(node for step in found for node in step.nodes) == list(range(count + 1))
    assert len(found) <= 36 + 3
    kinds = [step.kind for step in found]
    assert all(kinds[index] == kinds[index - 1] or kinds[index] not in kinds[:index] for index in range(1, len(kinds)))


def tops_and_heights(chart: str) -> list[tuple[float, float]]:
    bars = re.findall(r'<rect x="[^"]+" y="([^"]+)" width="[^"]+" height="([^"]+)"(?: class="total")?></rect>', chart)
    return [(float(y), float(height)) for y, height in bars]


def test_every_column_starts_where_the_one_before_ended() -> None:
    chart = waterfall(
        ("GPU alone", 100.0), [Step("a", "x", -30.0), Step("a", "y", -20.0), Step("b", "z", 5.0)], ("p", 55.0)
    )
    (first, total), (x, dx), (y, dy), (z, dz), (last, rest) = tops_and_heights(chart)
    assert x == pytest.approx(first, abs=0.02)
    assert y == pytest.approx(x + dx, abs=0.02)
    assert z + dz == pytest.approx(y + dy, abs=0.02)
    assert last == pytest.approx(z, abs=0.02)
    assert dx / total == pytest.approx(0.3, abs=0.001)
    assert rest / total == pytest.approx(0.55, abs=0.001)
    assert "the axis starts at" not in chart


def test_small_changes_are_seen_and_the_axis_says_so() -> None:
    chart = waterfall(("GPU alone", 1000.0), [Step("a", "x", -10.0)], ("p", 990.0))
    bars = tops_and_heights(chart)
    assert bars[1][1] > 50
    assert "the axis starts at 980 us" in chart


@pytest.mark.parametrize("last", [-69.0, -40.0])
def test_labels_stay_above_the_brackets(last: float) -> None:
    chart = waterfall(("GPU alone", 100.0), [Step("a", "x", -30.0), Step("a", "y", last)], ("p", 70.0 + last))
    places = [float(y) for y in re.findall(r'<text x="[^"]+" y="([^"]+)" class="small"', chart)]
    bottom = max(top + height for top, height in tops_and_heights(chart))
    assert len(places) == 2
    assert max(places) <= bottom
