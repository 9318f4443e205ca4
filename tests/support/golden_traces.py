"""What the published simulator says of the golden traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "runtime" / "newton" / "timing" / "golden"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
COUNTS = ("gwrite", "g_act", "comp", "readres", "prea", "ref")
CASES = [(name, latency) for name in sorted(EXPECTED) for latency in ("hidden", "exposed")]


def expected(name: str, latency: str) -> dict[str, Any]:
    return EXPECTED[name][f"gwrite_{latency}"]


def path(name: str) -> Path:
    return FOLDER / f"{name}.pim.gz"
