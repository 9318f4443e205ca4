"""A machine whose refreshes leave no time between them is refused when its file is read."""

from __future__ import annotations

import pytest

from pimflow.errors import TargetError
from pimflow.targets import parse_target, target_text

TEXT = target_text("pimflow")
# 11 (tRP) + 105 (tRFC) + 4 * 17 (tFAW) + 25 (tRAS) + 11 (tRCD) cycles to refresh and reopen all rows; 11 + 350.
LIMITS = [("t_refi = 1662", 220), ("refresh_interval = 1900", 361)]


@pytest.mark.parametrize(("line", "limit"), LIMITS)
def test_the_interval_must_exceed_what_a_refresh_takes(line, limit):
    key = line.split(" = ")[0]
    assert line in TEXT
    parse_target(TEXT.replace(line, f"{key} = {limit + 1}"), "enough.toml")
    with pytest.raises(TargetError, match=f"{key}' leaves no time between refreshes"):
        parse_target(TEXT.replace(line, f"{key} = {limit}"), "short.toml")
