"""`Target`: a machine, described by the table of each device; the first device is the host."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from pimflow.data import Nested, Table, decode, encode, not_among, take, unknown
from pimflow.errors import DataError, TargetError, kind_of, one_line
from pimflow.records import dataclass
from pimflow.targets.schema.gpu import Gpu, GpuSpec
from pimflow.targets.schema.memory import Memory
from pimflow.targets.schema.newton import PimSpec
from pimflow.targets.schema.origin import Origin, Override, by_key
from pimflow.targets.schema.unit import MISSING, USUAL_KINDS, Unit, kind_names, schema_of

U = TypeVar("U", bound=Unit)
MEMORY = "memory"
"""The table of memory tiers, which belongs to no unit."""
HINT = "add it; `pimflow targets show pimflow` has all"
"""The hint for a missing key."""


@dataclass(frozen=True, repr=False)
class Target:
    """A machine.

    Args:
        name, description: for readers.
        units: the table of every device, the host first: the unit that can run every node.
        origin: its original form in its file, if it comes from one; not part of the machine.
        memory: memory tiers and the links between them; None if the file does not describe them.

    Raises (when made):
        TargetError: a value that a target file may not have, with the same message.
    """

    name: str
    description: str
    units: Table[Unit]
    origin: Origin | None = field(default=None, compare=False)
    memory: Memory | None = None

    def __post_init__(self) -> None:
        try:
            for text in ("name", "description"):
                decode(str, getattr(self, text), path=text)
            units = _read_units(self.units)
            check_units(units)
            memory = _read_memory(self.memory)
        except DataError as error:
            raise TargetError(f"target {str(self.name)!r}: {error.what}", error.hint or HINT) from None
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "memory", memory)
        if self.origin is not None:
            object.__setattr__(self, "description", self.origin.describe(self.description, self.overrides))

    def __repr__(self) -> str:
        units = "; ".join(f"{device.upper()}: {unit.summary}" for device, unit in self.units.items())
        changed = ", ".join(map(str, self.overrides))
        return one_line("Target", f"{self.name}: {units}{f', but {changed}' if changed else ''}")

    def _repr_html_(self) -> str:
        cells = [("name", self.name), ("description", self.description)]
        cells += [(device.upper(), unit.summary) for device, unit in self.units.items()]
        cells += [] if self.memory is None else [("memory", self.memory.summary)]
        cells += [(change.key, str(change)) for change in self.overrides]
        rows = "".join(f"<tr><th>{html.escape(what)}</th><td>{html.escape(text)}</td></tr>" for what, text in cells)
        return f"<table>{rows}</table>"

    @property
    def values(self) -> dict[str, Any]:
        """Every value of its tables by key, such as "pim.timing.strict.t_faw"; None for omitted optional keys."""
        return by_key(encode({**self.units, **self._memory_table()}))

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The values that differ from its file, with defaults for keys that both omit; empty if it has no file."""
        if self.origin is None:
            return ()
        unsaid = by_key(encode({device: unit.unsaid for device, unit in self.units.items()}))
        return self.origin.overrides(self.values, unsaid)

    @property
    def host(self) -> str:
        """The device that can run every node: the baseline, and the device of all nodes that are not sent elsewhere."""
        return next(iter(self.units))

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, the host first."""
        return tuple(self.units)

    def kind(self, device: str) -> str:
        """The kind of unit of a device."""
        return self.units[device].kind

    @property
    def any_gpu(self) -> Gpu:
        """The GPU, regardless of its cost model.

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
        """Reads a file: `name`, `description`, and a table per unit (the host, then at least one more); `memory`."""
        tables = dict(read(dict[str, Any], data))
        memory = read(Memory, tables.pop(MEMORY), MEMORY) if MEMORY in tables else None
        own = {key: tables.pop(key) for key in ("name", "description") if key in tables}
        units = {device: _read_unit(device, table, read) for device, table in tables.items()}
        name, description = (read(str, take(own, key), key) for key in ("name", "description"))
        check_units(units)
        _check_memory(memory)
        return cls(name, description, Table(units), memory=memory)

    def to_data(self) -> dict[str, Any]:
        """The target as in a file; without a unit's kind if the name of its table implies it."""
        units = {
            device: unit if USUAL_KINDS.get(device) == unit.kind else _WithKind(unit)
            for device, unit in self.units.items()
        }
        return {"name": self.name, "description": self.description, **units, **self._memory_table()}

    def _memory_table(self) -> dict[str, Memory]:
        return {} if self.memory is None else {MEMORY: self.memory}


@dataclass(frozen=True)
class _WithKind:
    """A unit that names its kind in the file."""

    unit: Unit

    def to_data(self) -> dict[str, Any]:
        """The kind and the unit's own keys."""
        return {"kind": self.unit.kind, **encode(self.unit)}


def _read_unit(device: str, data: Any, read: Nested) -> Unit:
    table = dict(data) if isinstance(data, dict) else {}
    usual = USUAL_KINDS.get(device)
    if "kind" not in table and usual is None:
        raise unknown(
            device,
            ("base", "name", "description", MEMORY, *USUAL_KINDS),
            hint=", or name the unit's `kind` in the table",
        )
    kind = read(str, table.pop("kind", usual), device, "kind")
    schema = schema_of(kind)
    if schema is None:
        raise not_among(kind, kind_names(), device, "kind")
    unit: Unit = read(schema, table if isinstance(data, dict) else data, device)
    return unit


def _read_units(units: Any) -> Table[Unit]:
    """The units of a target that was created in Python, read like those of a file: 875 becomes 875.0 for a float.

    Raises:
        DataError: one is not a unit, or has a value of another type or out of range.
    """
    if not isinstance(units, Mapping):
        raise DataError(f"'units' is {kind_of(units)}", "it must be units by device, the host first")
    return Table({device: _read_again(device, unit) for device, unit in units.items()})


def _read_again(device: str, unit: Any) -> Unit:
    if not isinstance(unit, Unit):
        raise DataError(f"{device!r} is {kind_of(unit)}", "it must be a unit, such as a PimSpec")
    try:
        data = encode(unit)
    except TypeError as error:
        raise DataError(f"{device!r}: {error}", "give numbers, text, and tuples of them") from None
    return decode(type(unit), data, path=device)


def _read_memory(memory: Any) -> Memory | None:
    """The memory tiers of a target that was created in Python, read and checked like those of a file.

    Raises:
        DataError: it is not a `Memory`, or a value is of another type, out of range, or contradicts the others.
    """
    if memory is None:
        return None
    if not isinstance(memory, Memory):
        raise DataError(f"{MEMORY!r} is {kind_of(memory)}", "it must be a Memory, or None")
    found = decode(Memory, encode(memory), path=MEMORY)
    _check_memory(found)
    return found


def _check_memory(memory: Memory | None) -> None:
    for key, problem in () if memory is None else memory.problems():
        raise _contradiction(f"{MEMORY}.{key}", problem)


def _contradiction(path: str, problem: str) -> DataError:
    return DataError(f"missing key {path!r}") if problem == MISSING else DataError(f"{path!r} {problem}", "correct it")


def check_units(units: Mapping[str, Unit]) -> None:
    """Checks the units of a target against each other.

    Raises:
        DataError: there is no host, or no other unit, or a value contradicts the others.
    """
    if not any(unit.can_host for unit in list(units.values())[:1]):
        raise DataError("missing key 'gpu'")
    if len(units) < 2:
        raise DataError("missing key 'pim'")
    for device, unit in units.items():
        for key, problem in unit.problems(units):
            raise _contradiction(f"{device}.{key}", problem)
