"""Operators that are passed through without interpretation."""

from __future__ import annotations

from typing import Union

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape, Shapes
from pimflow.ir.ops.base import Op, register_op
from pimflow.records import dataclass

AttributeValue = Union[int, float, str, bytes, tuple[int, ...], tuple[float, ...], tuple[str, ...], "OpaqueAttribute"]
Attributes = tuple[tuple[str, AttributeValue], ...]
"""Attributes as (name, value) pairs, sorted by name."""


PREPARED = "pimflow"
"""The domain of the compiler's LSTM, GRU and RNN that read a precomputed product of their inputs.

Instead of X they read X W^T, with the gates of all directions side by side, and they have no W. Their ONNX form is
written by `onnxio/export.py` and read by `onnxio/recurrence.py`.
"""


_INDEXED = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})


@dataclass(frozen=True)
class OpaqueAttribute:
    """An attribute as a serialised AttributeProto (tensors, subgraphs, types): passed through without
    interpretation."""

    serialized: bytes


@register_op
@dataclass(frozen=True)
class OnnxOp(Op):
    """Any other ONNX operator: unchanged, executed by ONNX Runtime, costed on the GPU."""

    op_type: str
    domain: str = ""
    attributes: Attributes = ()

    @property
    def onnx_name(self) -> str:
        """The op_type."""
        return self.op_type

    @property
    def is_movement(self) -> bool:
        """Whether it is ONNX's Identity or Split."""
        return self.op_type in ("Identity", "Split") and not self.domain

    @property
    def has_bodies(self) -> bool:
        """Whether it runs graphs of its own, as If, Loop and Scan do."""
        return not self.domain and self.op_type in ("If", "Loop", "Scan")

    def content_positions(self, inputs: int) -> tuple[int, ...]:
        """All inputs of an op with bodies: constants may determine how often these run, and the shapes within them.

        For an op that reads or writes by an index, the index: it determines how much of the data caches hold.
        """
        if self.op_type in _INDEXED and not self.domain:
            return (1,)
        return tuple(range(inputs)) if self.has_bodies else ()

    def shape_rule(self, shapes: Shapes) -> Shape:
        """Raises: only ONNX knows the shape.

        Raises:
            GraphError: always.
        """
        raise GraphError(f"{self.op_type} is opaque: its output shapes are not known from its inputs alone")
