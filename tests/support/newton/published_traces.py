"""Traces of the published code generator, and what the published simulator says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "published_traces"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
COUNTS = ("gwrite", "g_act", "comp", "readres", "prea", "ref")
CASES = [(name, latency) for name in sorted(EXPECTED) for latency in ("hidden", "exposed")]


def expected(name: str, latency: str) -> dict[str, Any]:
    found: dict[str, Any] = EXPECTED[name][f"gwrite_{latency}"]
    return found


def path(name: str) -> Path:
    return FOLDER / f"{name}.pim.gz"
