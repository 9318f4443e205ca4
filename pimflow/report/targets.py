"""The available machines, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pimflow.report.tables import render_table
from pimflow.targets import Target


def targets_text(targets: Sequence[Target]) -> str:
    """A table with a line per machine: its units except the host, and its description."""
    rows = [(target.name, _beside_the_host(target), target.description) for target in targets]
    return render_table(("target", "beside the host", "description"), rows, prose=True)


def targets_json(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The machines as plain values, with all units by device, the host first."""
    return [
        {
            "name": target.name,
            "description": target.description,
            "units": {device: unit.summary for device, unit in target.units.items()},
        }
        for target in targets
    ]


def _beside_the_host(target: Target) -> str:
    return "; ".join(f"{device.upper()}: {target.units[device].summary}" for device in target.devices[1:])
