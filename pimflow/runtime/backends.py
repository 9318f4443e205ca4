"""The backends of a target's units, by their kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pimflow import plugins
from pimflow.codegen.backend import Backend
from pimflow.codegen.host import HostBackend
from pimflow.ir.registry import Registry
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.targets import Target
from pimflow.targets.schema import kind_of_plugin

if TYPE_CHECKING:
    from pimflow.runtime.gpu.measured import MeasuredTable

UNITS: Registry[str, Callable[[str, Any], Backend[Any, Any]]] = Registry("backends of units")
"""Backends of units, which run only work that they accept, by kind: constructed from device and spec."""

HOSTS: Registry[str, Callable[[str, Any, MeasuredTable | None], HostBackend]] = Registry("backends of hosts")
"""Backends of hosts, which run every node, by kind: constructed from device, spec, and measured times to prefer."""

UNITS.add("newton", NewtonBackend)
HOSTS.add("gpu", GpuHost)
HOSTS.add("measured-gpu", GpuHost)


# Only few machines have these: imported when needed.
@UNITS.register("cpu")
def _cpu(device: str, spec: Any) -> Backend[Any, Any]:
    from pimflow.runtime.cpu.backend import CpuBackend

    return CpuBackend(device, spec)


@UNITS.register("upmem")
def _upmem(device: str, spec: Any) -> Backend[Any, Any]:
    from pimflow.runtime.upmem.backend import UpmemBackend

    return UpmemBackend(device, spec)


@HOSTS.register("cpu")
def _cpu_host(device: str, spec: Any, measured: MeasuredTable | None) -> HostBackend:
    from pimflow.runtime.cpu.backend import CpuHost

    return CpuHost(device, spec, measured)


def unit_of(kind: str, device: str, spec: Any) -> Backend[Any, Any]:
    """A new backend for a unit other than the host.

    Raises:
        PluginError: another package offers the kind, but no backend for such units.
    """
    if kind in UNITS:
        return UNITS[kind](device, spec)
    plugin = _plugin(kind)
    factory = kind_of_plugin(plugin).unit
    backend = factory(device, spec) if factory is not None else None
    if not isinstance(backend, Backend):
        raise plugin.problem("has no backend for a unit other than the host")
    return backend


def units_of(target: Target) -> Mapping[str, Backend[Any, Any]]:
    """A new backend for each unit other than the host, by device, in the target's order."""
    return {device: unit_of(target.kind(device), device, target.units[device]) for device in target.devices[1:]}


def host_of(target: Target, measured: MeasuredTable | None = None) -> HostBackend:
    """The host's backend, with all its memory channels.

    Raises:
        PluginError: another package offers the host's kind, but no backend for such hosts.
    """
    kind, spec = target.kind(target.host), cast("Any", target.units[target.host])
    if kind in HOSTS:
        return HOSTS[kind](target.host, spec, measured)
    plugin = _plugin(kind)
    factory = kind_of_plugin(plugin).host
    backend = factory(target.host, spec, measured) if factory is not None else None
    if not isinstance(backend, HostBackend):
        raise plugin.problem("has no backend for a host")
    return backend


def _plugin(kind: str) -> plugins.Plugin:
    """The plugin that offers a kind that is not built into pimflow.

    Raises:
        KeyError: no plugin offers the kind.
    """
    plugin = plugins.find(plugins.BACKENDS, kind)
    if plugin is None:
        raise KeyError(kind)
    return plugin
