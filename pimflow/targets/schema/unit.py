"""What every unit of a machine has in common, and the kinds of units that targets may name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pimflow import plugins
from pimflow.data import Limits
from pimflow.records import dataclass

MISSING = "is missing"
"""The problem of a key that has to be there because of others."""

# Bounds that no machine comes near: sums and products of such numbers stay finite.
Count = Annotated[int, Limits(least=1, most=1 << 32)]
CountOrZero = Annotated[int, Limits(least=0, most=1 << 32)]
Positive = Annotated[float, Limits(least=1e-9, most=1e12)]
Amount = Annotated[float, Limits(least=0, most=1e12)]
Cycles = Annotated[int, Limits(least=1, most=1 << 16)]
"""Between two commands: what times streams goes through them, a sum of such times at a time."""
CyclesOrZero = Annotated[int, Limits(least=0, most=1 << 16)]


@dataclass(frozen=True)
class Unit:
    """What a target says of one unit: a table of the file, named after the device."""

    kind: ClassVar[str]
    can_host: ClassVar[bool] = False
    """Whether it can run every node, so that it may be the first unit of a target."""
    unsaid: ClassVar[Mapping[str, Any]] = {}
    """What tables of it that a target leaves out stand for, by name."""

    @property
    def summary(self) -> str:
        """The unit in a few words, for lists of machines."""
        return f"a unit of kind {self.kind}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """By name, the values that results depend on most and that people vary: reports name them."""
        return {}

    @property
    def divides_sums(self) -> bool:
        """Whether the cost of a product has all that a library gains by dividing what it sums over (split-K).

        Where it lacks that, a plan that divides a sum between two units would be credited with it too.
        """
        return True

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """What cannot be, as (key within the table, what is wrong with its value).

        Args:
            units: all units of the machine, by device, the host first.
        """
        return iter(())


KINDS: dict[str, type[Unit]] = {}
"""The schema of every kind of unit; a table of a target names its kind by the key `kind`."""

USUAL_KINDS = {"gpu": "gpu", "pim": "newton"}
"""The kinds of tables that name none, by the tables' names."""


@dataclass(frozen=True)
class Kind:
    """A kind of unit as another package offers it, by an entry point of its name in the group `pimflow.backends`.

    Args:
        schema: what a target says of such a unit.
        unit: its backend beside a host, made from device and spec: a `Backend`; None if it can only be the host.
        host: its backend as the host, made from device, spec, and measured times to prefer to its own: a
            `HostBackend`; None if it cannot be one.
    """

    schema: type[Unit]
    unit: Callable[[str, Any], Any] | None = None
    host: Callable[[str, Any, Any], Any] | None = None


def kind_names() -> tuple[str, ...]:
    """All kinds of units, those of other packages last."""
    return (*KINDS, *plugins.names(plugins.BACKENDS, KINDS))


def schema_of(kind: str) -> type[Unit] | None:
    """The schema of a kind of unit; None if there is no such kind.

    Raises:
        PluginError: another package offers it, but cannot be loaded, or offers something else.
    """
    if kind in KINDS:
        return KINDS[kind]
    plugin = plugins.find(plugins.BACKENDS, kind)
    return None if plugin is None else kind_of_plugin(plugin).schema


def kind_of_plugin(plugin: plugins.Plugin) -> Kind:
    """The kind that another package offers.

    Raises:
        PluginError: it cannot be loaded, or is none of that name.
    """
    kind = plugin.load(Kind)
    named = getattr(kind.schema, "kind", "")
    if named != plugin.name:
        raise plugin.problem(f"has a schema of kind {named!r}")
    return kind


def register_kind(schema: type[Unit]) -> type[Unit]:
    """Makes a kind of unit known to targets; used as a decorator."""
    KINDS[schema.kind] = schema
    return schema
