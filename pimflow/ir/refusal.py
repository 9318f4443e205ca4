"""`Refusal`: the one form in which analyses, code generators and cost models say why something cannot be done."""

from __future__ import annotations

from dataclasses import replace

from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot be done as asked: a result, not an exception.

    Args:
        reason: what stands against it, as one clause; it names the node where several are in question.
        demand: how many `unit` it would take; None where it does not fail for a quantity.
        bound: how many there are.
        unit: what `demand` and `bound` count, in the plural.
        remedy: what would change it, as something to do; "" where nothing is known to.
        in_vain: whether it can be done, but would not pay.
    """

    reason: str
    demand: int | None = None
    bound: int | None = None
    unit: str = ""
    remedy: str = ""
    in_vain: bool = False

    @property
    def gap(self) -> int | None:
        """How many of `unit` are missing; None where it does not fail for a quantity."""
        return None if self.demand is None or self.bound is None else self.demand - self.bound

    def at(self, node: str) -> Refusal:
        """The same with the node's name in front of the reason."""
        return replace(self, reason=f"{node}: {self.reason}")
