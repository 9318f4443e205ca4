"""The entry points of installed packages in pimflow's groups.

Their names are read without importing any package. A plugin that cannot be loaded is an error if it is asked for by
name, a warning if everything is listed, and ignored otherwise.
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
    from importlib.metadata import Distribution

T = TypeVar("T")

TARGETS, POLICIES, BACKENDS, PASSES = "pimflow.targets", "pimflow.policies", "pimflow.backends", "pimflow.passes"
_WHAT = {TARGETS: "target", POLICIES: "policy", BACKENDS: "backend", PASSES: "pass"}


class PluginWarning(UserWarning):
    """A plugin is ignored: it cannot be loaded, or it has the name of something in pimflow."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of a package.

    Args:
        group: what it extends: `TARGETS`, `POLICIES`, `BACKENDS` or `PASSES`.
        name: the name to ask for it by, in lower case.
        value: the object to import, as in "package.module:name".
        package: the distribution that provides it, with its version; "" if unknown.
        distribution: the distribution itself, to find its files.
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
        """The module to import."""
        return self.value.partition(":")[0].strip()

    def load(self, form: type[T]) -> T:
        """Import the object.

        Args:
            form: the class that it must be an instance of.

        Raises:
            PluginError: it cannot be imported, or is not an instance of `form`.
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
        """An error about this plugin; `what` is a verb and what follows."""
        return PluginError(f"{self} {what}", f"repair or uninstall {self.package or 'the package'}")


def names(group: str, own: Collection[str] = ()) -> tuple[str, ...]:
    """The names that packages add to a group, sorted. A name that pimflow itself uses is ignored with a warning.

    Args:
        group: one of the groups above.
        own: pimflow's own names in the group, which no package can take.
    """
    found = _plugins(tuple(sys.path))
    for plugin in found:
        if plugin.group == group and plugin.name in own:
            _warn_ignored(f"{plugin} is ignored: pimflow has one of this name")
    return tuple(sorted({plugin.name for plugin in found if plugin.group == group and plugin.name not in own}))


def find(group: str, name: str) -> Plugin | None:
    """The plugin of this name in a group, if there is one.

    Raises:
        PluginError: two packages offer one.
    """
    wanted = name.strip().lower()
    found = [plugin for plugin in _plugins(tuple(sys.path)) if (plugin.group, plugin.name) == (group, wanted)]
    if len(found) > 1:
        packages = " and ".join(plugin.package or plugin.value for plugin in found)
        raise PluginError(f"{_WHAT[group]} {wanted!r} is offered by {packages}", "uninstall one of them")
    return found[0] if found else None


def load_all(group: str, load: Callable[[str], T], own: Collection[str] = ()) -> Iterator[T]:
    """The loaded plugins of a group, in the order of their names; those that cannot be loaded are skipped with a
    warning.

    Args:
        group: one of the groups above.
        load: loads the plugin of a name.
        own: pimflow's own names in the group.
    """
    for name in names(group, own):
        try:
            yield load(name)
        except PimflowError as error:
            _warn_ignored(f"{error.what} (it is left out)")


def installed(groups: Collection[str]) -> tuple[Plugin, ...]:
    """All entry points in some groups, sorted."""
    found = [plugin for plugin in _plugins(tuple(sys.path)) if plugin.group in groups]
    return tuple(sorted(found, key=lambda plugin: (plugin.group, plugin.name, plugin.package, plugin.value)))


def forget_entries() -> None:
    """Make the next call look up the installed packages again."""
    _plugins.cache_clear()


@cache
def _plugins(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """All entry points in pimflow's groups of the packages installed along `path`, which is `sys.path`."""
    from importlib.metadata import distributions

    found: dict[tuple[str, str, str], Plugin] = {}
    for distribution in distributions(path=list(path)):
        for group, name, value in _entries(distribution):
            package = _package(distribution)
            plugin = Plugin(group, printable(name.lower()), value, package, distribution)
            # An older version of a package may lie further down the path.
            found.setdefault((plugin.group, plugin.name, package.partition(" ")[0] or plugin.value), plugin)
    return tuple(found.values())


def _entries(distribution: Distribution) -> list[tuple[str, str, str]]:
    """(group, name, value) of a package's entry points in pimflow's groups. They are read line by line, as the backport
    `importlib_metadata`, which replaces Python's own once anything imports it, has none of a package with a malformed
    one."""
    found: list[tuple[str, str, str]] = []
    group = ""
    for line in map(str.strip, _text(distribution).splitlines()):
        name, sign, value = map(str.strip, line.partition("="))
        if line.startswith("["):
            group = line.strip("[]")
        elif group in _WHAT and name and sign and not line.startswith("#"):
            found.append((group, name, value))
    return found


def _text(distribution: Distribution) -> str:
    """The file of a package's entry points; "" if it has none."""
    try:
        return distribution.read_text("entry_points.txt") or ""
    except Exception:  # errors in another package are not pimflow's concern
        return ""


def _package(distribution: Distribution) -> str:
    try:
        return printable(f"{distribution.metadata['Name'] or ''} {distribution.version or ''}".strip())
    except Exception:  # it has no metadata
        return ""


def _warn_ignored(message: str) -> None:
    warnings.warn(message, PluginWarning, stacklevel=2)
