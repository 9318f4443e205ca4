"""Lists of machines: every unit describes itself."""

from __future__ import annotations

from pimflow.report.targets import targets_json, targets_text
from pimflow.targets import load_target

SHOWN = [load_target(name) for name in ("pimflow", "hbm-pim")]


def test_a_line_per_machine() -> None:
    head, _, first, second = targets_text(SHOWN).splitlines()
    assert head.split() == ["target", "beside", "the", "host", "description"]
    assert first.startswith("pimflow  PIM: 16 channels of 16 banks x 16 multipliers")
    assert second.startswith("hbm-pim  PIM: 16 channels of 8 banks x 16 multipliers")
    assert SHOWN[1].description in second


def test_json_has_all_units() -> None:
    first, _ = targets_json(SHOWN)
    assert first["units"] == {
        "gpu": "30 SMs at 1365 MHz, 32 memory channels",
        "pim": "16 channels of 16 banks x 16 multipliers",
    }
