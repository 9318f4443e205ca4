"""Versions: the package's, and one of every form of JSON document that it writes.

Imports nothing of the package, so that the build can read it.
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
"""What is in them: `docs/schemas/KIND.schema.json`. A number grows when a key goes or changes its meaning."""


def format_of(kind: str) -> str:
    """What a document of a kind says under "format"."""
    return f"pimflow-{kind}/{FORMATS[kind]}"


def document(kind: str, content: Mapping[str, Any], command: str | None = None) -> dict[str, Any]:
    """A document of a kind that a verb prints: its format, who made it by which command line, and the content."""
    return {"format": format_of(kind), "pimflow": __version__, "command": command, **content}
