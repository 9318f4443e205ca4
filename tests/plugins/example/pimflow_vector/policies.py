"""A custom policy: the candidates that the search may choose from."""

from __future__ import annotations

from fractions import Fraction

from pimflow.search.policy import Policy, Space

HALVES = Policy(
    "halves", "each product whole on a device, or half of its rows on each of two", (Space(split=Fraction(1, 2)),)
)
