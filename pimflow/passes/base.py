"""Passes: frozen dataclasses whose fields are their options; each turns a graph into a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from pimflow.data import TAG, decode
from pimflow.errors import DataError, OptionError
from pimflow.ir import Graph
from pimflow.passes.spec import Spec, spec_text
from pimflow.records import dataclass

AnyPass = TypeVar("AnyPass", bound="Pass")


@dataclass(frozen=True)
class PassResult:
    """The result of a pass.

    Args:
        graph: the new graph; the given one if nothing changed.
        changed: whether anything changed.
        notes: why the pass did not apply where one might expect it to, each "node: reason".
        sites: the nodes at which it applied, if it has an option to leave some alone.
    """

    graph: Graph
    changed: bool
    notes: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pass(ABC):
    """One rewrite. Graphs in, graphs out, without side effects.

    A pass's `str` is its name and the options that are not at their default, as `pimflow opt -p` reads them.

    Attributes:
        name: the public name of the pass, in kebab-case.
        required: whether later steps depend on the pass, so that it may not be disabled.
        keeps_values: whether the graph computes the same values afterwards.
    """

    name: ClassVar[str]
    required: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True

    @abstractmethod
    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph.

        Raises:
            PimflowError: the options ask for something that this graph does not allow.
        """

    @classmethod
    def of(cls: type[AnyPass], options: Mapping[str, Any]) -> AnyPass:
        """The pass with these options, given as plain data; nested dataclasses are tagged with their class names.

        Raises:
            OptionError: an option is unknown, missing or of the wrong type.
        """
        try:
            return decode(cls, {TAG: cls.__name__, **options}, tagged=True)
        except DataError as error:
            raise OptionError(f"pass {cls.name!r}: {error.what}", error.hint) from None

    def __str__(self) -> str:
        options = {key: value for key, value in _plain(self).items() if key != TAG}
        return spec_text(Spec(self.name, options))


def _plain(item: Any) -> Any:
    """Plain data as read by `Pass.of`: fields at their default are left out."""
    if isinstance(item, tuple):
        return [_plain(entry) for entry in item]
    if not is_dataclass(item):
        return item
    given = {field.name: getattr(item, field.name) for field in fields(item)}
    changed = {field.name for field in fields(item) if given[field.name] != field.default}
    return {TAG: type(item).__name__, **{key: _plain(value) for key, value in given.items() if key in changed}}
