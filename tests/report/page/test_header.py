"""The header of a page."""

from __future__ import annotations

import pytest

from pimflow.report.page.header import compared


@pytest.mark.parametrize(
    ("before_us", "after_us", "told"),
    [
        (3.0, 1.5, "2.00x faster"),
        (1.5, 3.0, "2.00x slower"),
        (3.0, 3.0, "as fast"),
        (0.0, 0.0, "as fast"),
        (0.0, 1.0, "slower"),
        (1.0, 0.0, "faster"),
    ],
)
def test_two_times_are_compared(before_us: float, after_us: float, told: str) -> None:
    assert compared(before_us, after_us) == told
