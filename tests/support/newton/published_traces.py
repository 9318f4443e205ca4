"""Traces of the published code generator, and the results of the published simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pimflow.codegen.newton.commands import Command
from pimflow.codegen.newton.trace import LineParser, trace_lines
from pimflow.targets import PimSpec

FOLDER = Path(__file__).parents[2] / "data" / "published_traces"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
COUNTS = ("gwrite", "g_act", "comp", "readres", "prea", "ref")
CASES = [(name, latency) for name in sorted(EXPECTED) for latency in ("hidden", "exposed")]


def expected(name: str, latency: str) -> dict[str, Any]:
    found: dict[str, Any] = EXPECTED[name][f"gwrite_{latency}"]
    return found


def path(name: str) -> Path:
    return FOLDER / f"{name}.pim.gz"


def read_trace(file: Path, pim: PimSpec) -> Iterator[Command]:
    """The commands of a trace. A GWRITE has its elements, but not their source; without elements, it fills a buffer."""
    parser = LineParser(file, pim)
    known: dict[bytes, Command | None] = {}
    for number, line in enumerate(trace_lines(file), 1):
        if line not in known:
            known[line] = parser.command(line, number)
        command = known[line]
        if command is not None:
            yield command
