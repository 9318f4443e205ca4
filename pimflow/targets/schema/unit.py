"""The base class of all units of a machine, and the kinds of units that targets may name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pimflow import plugins
from pimflow.data import Limits
from pimflow.records import dataclass

MISSING = "is missing"
"""The problem of a key that other keys require."""

# Bounds far beyond any real machine: sums and products of such numbers stay finite.
Count = Annotated[int, Limits(least=1, most=1 << 32)]
CountOrZero = Annotated[int, Limits(least=0, most=1 << 32)]
Positive = Annotated[float, Limits(least=1e-9, most=1e12)]
Amount = Annotated[float, Limits(least=0, most=1e12)]
Cycles = Annotated[int, Limits(least=1, most=1 << 16)]
"""Cycles between two commands; the limit is lower because the timing of streams advances by sums of these."""
CyclesOrZero = Annotated[int, Limits(least=0, most=1 << 16)]


@dataclass(frozen=True)
class Unit:
    """The description of one unit in a target: a table of the file, named after the device."""

    kind: ClassVar[str]
    can_host: ClassVar[bool] = False
    """Whether it can run every node, so that it may be the first unit of a target."""
    unsaid: ClassVar[Mapping[str, Any]] = {}
    """The defaults of tables that a target omits, by name."""

    @property
    def summary(self) -> str:
        """The unit in a few words, for lists of machines."""
        return f"a unit of kind {self.kind}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """The values by name that influence results most and that people vary; reports show them."""
        return {}

    @property
    def divides_sums(self) -> bool:
        """Whether the cost of a product includes all the gain of dividing its sum in the library (split-K).

        If not, a plan that divides a sum between two units would be credited with that gain too.
        """
        return True

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """Invalid values, as (key within the table, what is wrong with its value).

        Args:
            units: all units of the machine, by device, the host first.
        """
        return iter(())


KINDS: dict[str, type[Unit]] = {}
"""The schema of every kind of unit; a table of a target names its kind by the key `kind`."""

USUAL_KINDS = {"gpu": "gpu", "pim": "newton"}
"""The default kinds, by the name of the table."""


@dataclass(frozen=True)
class Kind:
    """A kind of unit offered by another package through an entry point of its name in the group `pimflow.backends`.

    Args:
        schema: the class of such a unit's table in a target.
        unit: creates its backend as a unit next to a host, from device and spec: a `Backend`; None if it can only be
            the host.
        host: creates its backend as the host, from device, spec, and measured times to be preferred to its own: a
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
        PluginError: another package offers it, but it cannot be loaded, or has another type.
    """
    if kind in KINDS:
        return KINDS[kind]
    plugin = plugins.find(plugins.BACKENDS, kind)
    return None if plugin is None else kind_of_plugin(plugin).schema


def kind_of_plugin(plugin: plugins.Plugin) -> Kind:
    """The kind that another package offers.

    Raises:
        PluginError: it cannot be loaded, or has another name.
    """
    kind = plugin.load(Kind)
    named = getattr(kind.schema, "kind", "")
    if named != plugin.name:
        raise plugin.problem(f"has a schema of kind {named!r}")
    return kind


def register_kind(schema: type[Unit]) -> type[Unit]:
    """Registers a kind of unit for targets; used as a decorator."""
    KINDS[schema.kind] = schema
    return schema
