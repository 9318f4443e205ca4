"""The record of a target in reports and files: identifies the machine of a result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pimflow.data import Table, encode
from pimflow.records import dataclass
from pimflow.targets.schema import Origin, Override, Target
from pimflow.targets.schema.origin import frozen, spelled
from pimflow.targets.writer import to_toml

_MAX_OVERRIDES = 8


@dataclass(frozen=True)
class TargetRecord:
    """A target as reports show it.

    Args:
        name, description: its own; the description takes overrides into account.
        base: the target that its file extends; "" if it extends none.
        sha256: of the target.toml that an output folder has for it.
        overrides: the values that differ from its file.
        settings: by device, what results depend on most: profiles, buffers, element types.
    """

    name: str
    description: str
    base: str
    sha256: str
    overrides: tuple[Override, ...]
    settings: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, target: Target) -> TargetRecord:
        """The record of a target."""
        return cls(
            target.name,
            target.description,
            target.origin.base if target.origin else "",
            hashlib.sha256(to_toml(target).encode()).hexdigest(),
            target.overrides,
            {device: unit.settings for device, unit in target.units.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        data: dict[str, Any] = encode(self)
        return data

    def lines(self) -> list[tuple[str, str]]:
        """The record for a summary, as (label, text)."""
        first = [str(change) for change in self.overrides[:_MAX_OVERRIDES]]
        rest = len(self.overrides) - len(first)
        changed = ", ".join([*first, *([f"{rest} more, all in the JSON"] if rest else [])])
        base = f"{self.description} (from {self.base})" if self.base else self.description
        told = {device: _settings(settings) for device, settings in self.settings.items()}
        settings = "; ".join(f"{device.upper()}: {text}" for device, text in told.items() if text)
        lines = [("machine", f"{self.name}, but {changed}" if changed else base), ("settings", settings)]
        return [(what, text) for what, text in lines if text]

    def restored(self, target: Target) -> Target:
        """A target that was read from an output folder, with the origin that it was saved with."""
        before = {change.key: frozen(change.before) for change in self.overrides}
        values = Table({**target.values, **before})
        origin = Origin(self.name, "", values, self.base)
        return Target(target.name, target.description, target.units, origin, target.memory)


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {spelled(value)}" for name, value in settings.items())
