"""The backends of a target's units, by their kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pimflow.codegen.backend import Backend, HostBackend
from pimflow.ir.registry import Registry
from pimflow.runtime.cpu.backend import CpuBackend, CpuHost
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.upmem.backend import UpmemBackend
from pimflow.targets import Target

if TYPE_CHECKING:
    from pimflow.runtime.gpu.measured import MeasuredTable

UNITS: Registry[str, type[Backend[Any, Any]]] = Registry("backends of units")
"""Backends of units that run the work they accept, by kind."""

HOSTS: Registry[str, Callable[[str, Any, MeasuredTable | None], HostBackend]] = Registry("backends of hosts")
"""Backends of units that run every node, by kind: made from device, spec, and measured times to prefer to its own."""

UNITS.add("newton", NewtonBackend)
UNITS.add("cpu", CpuBackend)
UNITS.add("upmem", UpmemBackend)
HOSTS.add("gpu", GpuHost)
HOSTS.add("measured-gpu", GpuHost)
HOSTS.add("cpu", CpuHost)


def units_of(target: Target) -> Mapping[str, Backend[Any, Any]]:
    """A fresh backend for every unit beside the host, by device, in the target's order."""
    return {device: UNITS[target.kind(device)](device, target.units[device]) for device in target.devices[1:]}


def host_of(target: Target, measured: MeasuredTable | None = None) -> HostBackend:
    """The host's backend, with all its memory channels."""
    spec: Any = target.units[target.host]
    return HOSTS[target.kind(target.host)](target.host, spec, measured)
