"""The backends of a target's units, by their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pimflow.codegen.backend import Backend, HostBackend
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.targets import Target

if TYPE_CHECKING:
    from pimflow.runtime.gpu.measured import MeasuredTable

UNITS: dict[str, type[Backend[Any]]] = {"newton": NewtonBackend}
"""Backends of units that run the work they accept, by kind."""

HOSTS: dict[str, type[GpuHost]] = {"gpu": GpuHost}
"""Backends of units that run every node, by kind."""


def units_of(target: Target) -> Mapping[str, Backend[Any]]:
    """A fresh backend for every unit beside the host, by device, in the target's order."""
    return {device: UNITS[target.kind(device)](device, target.units[device]) for device in target.devices[1:]}


def host_of(target: Target, measured: MeasuredTable | None = None) -> HostBackend:
    """The host's backend, with all its memory channels."""
    spec: Any = target.units[target.host]
    return HOSTS[target.kind(target.host)](target.host, spec, measured)
