"""Functions that units apply to results as they are read out, at no cost."""

from __future__ import annotations

from typing import Literal

from pimflow.ir.graph import Node
from pimflow.records import dataclass

Functions = Literal["any"] | tuple[str, ...]
"""Elementwise functions by ONNX op_type, or any function of one element."""


@dataclass(frozen=True)
class Readout:
    """A unit that applies functions to its results as they are read out.

    Args:
        device: the unit.
        functions: the functions that it can apply.
    """

    device: str
    functions: Functions = "any"

    def applies(self, node: Node) -> bool:
        """Whether an elementwise node is one of the functions."""
        return self.functions == "any" or node.kind in self.functions
