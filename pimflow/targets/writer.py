"""A target as TOML text: the effective configuration that an output folder keeps."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pimflow.targets.schema import Target


def to_toml(target: Target) -> str:
    """TOML text from which `parse_target` makes an equal target."""
    lines: list[str] = []
    _write(target, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write(item: Any, path: str, lines: list[str]) -> None:
    tables = []
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if dataclasses.is_dataclass(value) or isinstance(value, dict):
            tables.append((f"{path}.{field.name}" if path else field.name, value))
        elif value is not None:
            lines.append(f"{field.name} = {_scalar(value)}")
    for name, value in tables:
        lines.extend(("", f"[{name}]"))
        if isinstance(value, dict):
            lines.extend(f"{json.dumps(key)} = {_scalar(entry)}" for key, entry in value.items())
        else:
            _write(value, name, lines)


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON's spelling of strings and numbers is TOML's too.
    return json.dumps(value, ensure_ascii=False)
