"""`Refusal`: how analyses, code generators and cost models state why something cannot be done."""

from __future__ import annotations

from dataclasses import replace

from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot be done as asked: a result, not an exception.

    Args:
        reason: what prevents it, as one clause; it names the node if several are involved.
        demand: how many of `unit` it needs; None if the obstacle is not a quantity.
        bound: how many are available.
        unit: what `demand` and `bound` count, in the plural.
        remedy: an action that would make it possible; "" if none is known.
        in_vain: whether it can be done but would not pay off.
    """

    reason: str
    demand: int | None = None
    bound: int | None = None
    unit: str = ""
    remedy: str = ""
    in_vain: bool = False

    @property
    def gap(self) -> int | None:
        """How many of `unit` are missing; None if the obstacle is not a quantity."""
        return None if self.demand is None or self.bound is None else self.demand - self.bound

    def at(self, node: str) -> Refusal:
        """The same refusal, its reason prefixed with the node's name."""
        return replace(self, reason=f"{node}: {self.reason}")
