"""Versions: of the package, and of every JSON document format that it writes.

Imports nothing from the package, so that the build can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__version__ = "0.1.0"

FORMATS = {
    "cache": 1,
    "calibrate": 1,
    "compare": 1,
    "compile": 1,
    "diff": 1,
    "explain": 1,
    "front": 1,
    "gnn-epoch": 1,
    "inspect": 1,
    "layer": 1,
    "memory": 1,
    "output": 2,
    "passes": 1,
    "plan": 1,
    "simulate": 1,
    "sweep": 1,
    "targets": 1,
    "timeline": 1,
    "train": 1,
    "tune-graph": 1,
    "verification": 1,
    "verify": 1,
    "zoo": 1,
}
"""Format versions; the formats are described by `docs/schemas/KIND.schema.json`. A version is raised when a key is
removed or changes its meaning."""


def format_of(kind: str) -> str:
    """The "format" value of a document of this kind."""
    return f"pimflow-{kind}/{FORMATS[kind]}"


def document(kind: str, content: Mapping[str, Any], command: str | None = None) -> dict[str, Any]:
    """A document that a verb prints: its format, the version and the command line that made it, and the content."""
    return {"format": format_of(kind), "pimflow": __version__, "command": command, **content}
