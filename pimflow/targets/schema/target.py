"""`Target`: a machine as its units, by device; the first one is the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pimflow.data import Nested, Table, encode, not_among, take, unknown
from pimflow.errors import TargetError
from pimflow.targets.schema.gpu import Gpu, GpuSpec
from pimflow.targets.schema.newton import PimSpec
from pimflow.targets.schema.unit import KINDS, USUAL_KINDS, Unit

U = TypeVar("U", bound=Unit)


@dataclass(frozen=True)
class Target:
    """A machine.

    Args:
        name, description: for readers.
        units: what the target says of every device, the host first: the unit that can run every node.
    """

    name: str
    description: str
    units: Table[Unit]

    @property
    def host(self) -> str:
        """The device that can run every node: the baseline, and where nodes run that go nowhere else."""
        return next(iter(self.units))

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, the host first."""
        return tuple(self.units)

    def kind(self, device: str) -> str:
        """The kind of unit that a device is."""
        return self.units[device].kind

    @property
    def any_gpu(self) -> Gpu:
        """The GPU, whatever its cost model is fitted to.

        Raises:
            TargetError: the machine has none.
        """
        for unit in self.units.values():
            if isinstance(unit, Gpu):
                return unit
        raise TargetError(f"target {self.name!r} has no GPU", "choose another target")

    @property
    def gpu(self) -> GpuSpec:
        """The GPU whose cost model is fitted to a simulator.

        Raises:
            TargetError: the machine has none.
        """
        return self._only(GpuSpec)

    @property
    def pim(self) -> PimSpec:
        """The Newton-style PIM channels.

        Raises:
            TargetError: the machine has none.
        """
        return self._only(PimSpec)

    def _only(self, form: type[U]) -> U:
        for unit in self.units.values():
            if isinstance(unit, form):
                return unit
        raise TargetError(f"target {self.name!r} has no unit of kind {form.kind!r}", "choose another target")

    def with_units(self, **units: Unit) -> Target:
        """The same machine with some units replaced or added."""
        return replace(self, units=Table({**self.units, **units}))

    @classmethod
    def from_data(cls, data: Any, read: Nested) -> Target:
        """A file: `name`, `description`, and a table per unit: first the host, then at least one more."""
        tables = dict(read(dict[str, Any], data))
        name, description = (read(str, take(tables, key), key) for key in ("name", "description"))
        units = {device: _read_unit(device, table, read) for device, table in tables.items()}
        if not any(unit.can_host for unit in list(units.values())[:1]):
            take({}, "gpu")
        if len(units) < 2:
            take({}, "pim")
        return cls(name, description, Table(units))

    def to_data(self) -> dict[str, Any]:
        """As in a file; a unit's kind is left out where its table's name says it."""
        units = {
            device: unit if USUAL_KINDS.get(device) == unit.kind else _WithKind(unit)
            for device, unit in self.units.items()
        }
        return {"name": self.name, "description": self.description, **units}


@dataclass(frozen=True)
class _WithKind:
    """A unit that names its kind in the file."""

    unit: Unit

    def to_data(self) -> dict[str, Any]:
        """The kind, and the unit's own keys."""
        return {"kind": self.unit.kind, **encode(self.unit)}


def _read_unit(device: str, data: Any, read: Nested) -> Unit:
    table = dict(data) if isinstance(data, dict) else {}
    usual = USUAL_KINDS.get(device)
    if "kind" not in table and usual is None:
        raise unknown(device, ("name", "description", *USUAL_KINDS), hint=", or name the unit's `kind` in the table")
    kind = read(str, table.pop("kind", usual), device, "kind")
    if kind not in KINDS:
        raise not_among(kind, KINDS, device, "kind")
    unit: Unit = read(KINDS[kind], table if isinstance(data, dict) else data, device)
    return unit
