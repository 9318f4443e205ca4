"""The entry points of installed packages in pimflow's groups.

To know their names no package is imported. One that cannot be loaded is an error where it is asked for by name, a
warning where everything is listed, and nothing anywhere else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from pimflow.errors import PimflowError, PluginError, kind_of, printable
from pimflow.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

T = TypeVar("T")

TARGETS, POLICIES, BACKENDS, PASSES = "pimflow.targets", "pimflow.policies", "pimflow.backends", "pimflow.passes"
_WHAT = {TARGETS: "target", POLICIES: "policy", BACKENDS: "backend", PASSES: "pass"}


class PluginWarning(UserWarning):
    """Something that an installed package offers is left out: it cannot be loaded, or has a name of pimflow's own."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of a package.

    Args:
        group: what it adds to: `TARGETS`, `POLICIES`, `BACKENDS` or `PASSES`.
        name: what it is asked for by, in lower case.
        value: what is to be imported, as in "package.module:name".
        package: the distribution that has it, with its version; "" where that is not known.
        distribution: the same, to find its files.
    """

    group: str
    name: str
    value: str
    package: str
    distribution: Distribution

    def __str__(self) -> str:
        return f"{_WHAT[self.group]} {self.name!r} of {self.package or self.value}"

    @property
    def module(self) -> str:
        """The module that is imported for it."""
        return self.value.partition(":")[0].strip()

    def load(self, form: type[T]) -> T:
        """What it names, imported.

        Args:
            form: the class that it has to be an instance of.

        Raises:
            PluginError: it cannot be imported, or is something else.
        """
        from importlib.metadata import EntryPoint

        try:
            found = EntryPoint(self.name, self.value, self.group).load()
        except (Exception, SystemExit) as error:
            raise self.problem(f"cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(found, form):
            raise self.problem(f"is {kind_of(found)}, not a {form.__name__}")
        return found

    def problem(self, what: str) -> PluginError:
        """An error that is about it: a verb and what follows."""
        return PluginError(f"{self} {what}", f"repair or uninstall {self.package or 'the package'}")


def names(group: str, own: Collection[str] = ()) -> tuple[str, ...]:
    """The names that packages add to a group, sorted; those that pimflow has itself are left out with a warning.

    Args:
        group: one of those above.
        own: pimflow's own names there, which no package can take.
    """
    found = _plugins(tuple(sys.path))
    for plugin in found:
        if plugin.group == group and plugin.name in own:
            _leave_out(f"{plugin} is left out: pimflow has one of this name")
    return tuple(sorted({plugin.name for plugin in found if plugin.group == group and plugin.name not in own}))


def find(group: str, name: str) -> Plugin | None:
    """What a package adds to a group under a name.

    Raises:
        PluginError: two packages do.
    """
    wanted = name.strip().lower()
    found = [plugin for plugin in _plugins(tuple(sys.path)) if (plugin.group, plugin.name) == (group, wanted)]
    if len(found) > 1:
        packages = " and ".join(plugin.package or plugin.value for plugin in found)
        raise PluginError(f"{_WHAT[group]} {wanted!r} is offered by {packages}", "uninstall one of them")
    return found[0] if found else None


def that_load(group: str, load: Callable[[str], T], own: Collection[str] = ()) -> Iterator[T]:
    """What packages add to a group, in the order of their names; what cannot be loaded is left out with a warning.

    Args:
        group: one of those above.
        load: gives what a name stands for.
        own: pimflow's own names there.
    """
    for name in names(group, own):
        try:
            yield load(name)
        except PimflowError as error:
            _leave_out(f"{error.what} (it is left out)")


def installed(groups: Collection[str]) -> tuple[Plugin, ...]:
    """All entry points in some groups, sorted."""
    found = [plugin for plugin in _plugins(tuple(sys.path)) if plugin.group in groups]
    return tuple(sorted(found, key=lambda plugin: (plugin.group, plugin.name, plugin.package, plugin.value)))


def forget_entries() -> None:
    """Has what is installed looked up again by the next call."""
    _plugins.cache_clear()


@cache
def _plugins(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """All entry points in pimflow's groups of what is installed along a path, which is `sys.path`."""
    from importlib.metadata import distributions

    found: dict[tuple[str, str, str], Plugin] = {}
    for distribution in distributions(path=list(path)):
        for entry in _entries(distribution):
            package = _package(distribution)
            plugin = Plugin(entry.group, printable(entry.name.lower()), entry.value, package, distribution)
            # An older version of a package may lie further down the path.
            found.setdefault((plugin.group, plugin.name, package.partition(" ")[0] or plugin.value), plugin)
    return tuple(found.values())


def _entries(distribution: Distribution) -> list[EntryPoint]:
    try:
        return [entry for entry in distribution.entry_points if entry.group in _WHAT]
    except Exception:  # whatever is wrong with another package is no concern of ours
        return []


def _package(distribution: Distribution) -> str:
    try:
        return printable(f"{distribution.metadata['Name'] or ''} {distribution.version or ''}".strip())
    except Exception:  # it has no metadata
        return ""


def _leave_out(message: str) -> None:
    warnings.warn(message, PluginWarning, stacklevel=2)
