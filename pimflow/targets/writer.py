"""A target as TOML text: the effective configuration that an output folder keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pimflow.data import encode
from pimflow.targets.schema import Target


def to_toml(target: Target) -> str:
    """TOML text from which `parse_target` makes an equal target."""
    lines: list[str] = []
    _write(encode(target), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    """Plain values first, then the tables within; None is left out."""
    for key, value in table.items():
        if value is not None and not isinstance(value, dict):
            # JSON's spelling of strings, numbers and lists of them is TOML's too.
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    for key, value in table.items():
        if isinstance(value, dict):
            name = f"{path}.{key}" if path else key
            lines.extend(("", f"[{name}]"))
            _write(value, name, lines)
