"""How a room of the compiler treats each kind of op: one registry of rules per room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pimflow.ir.ops.base import OPS, Op
from pimflow.ir.registry import Registry

Rule = TypeVar("Rule", bound=Callable[..., Any])


ROOMS: Registry[str, OpRules[Any]] = Registry("rooms")
"""The rules of every room that has been imported, by their `room` text."""


class OpRules(Registry[type[Op], Rule]):
    """How one room treats each kind of op: a rule by op class (subclasses need their own).

    Args:
        room: what the rules define, in a few words; unique.
        asks: which ops the room requires a rule for; by default all.
    """

    def __init__(self, room: str, asks: Callable[[type[Op]], bool] = lambda kind: True) -> None:
        super().__init__(room)
        self.left_out: Registry[type[Op], str] = Registry(f"{room}: left out")
        self._asks = asks
        ROOMS.add(room, self)

    def find(self, op: Op) -> Rule | None:
        """The rule for an op; None if there is none."""
        return self._entries.get(type(op))

    def of(self, op: Op) -> Rule:
        """The rule for an op.

        Raises:
            NotImplementedError: there is none.
        """
        rule = self._entries.get(type(op))
        if rule is None:
            raise NotImplementedError(f"{self.what}: no rule for {type(op).__name__}")
        return rule

    def leave_out(self, reason: str, *kinds: type[Op]) -> None:
        """Exempts some ops that the room asks for from needing a rule, for a stated reason."""
        for kind in kinds:
            self.left_out.add(kind, reason)

    def missing(self) -> tuple[str, ...]:
        """Names of the registered ops that the room asks for and neither has a rule for nor leaves out."""
        return tuple(
            kind.__name__
            for kind in OPS.values()
            if self._asks(kind) and kind not in self._entries and kind not in self.left_out
        )
