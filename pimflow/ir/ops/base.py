"""The contract of an op: what it declares about itself for graphs to be verified, split and costed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape, Shapes, Span, rank_text
from pimflow.ir.refusal import Refusal
from pimflow.ir.registry import Registry
from pimflow.records import dataclass

OpClass = TypeVar("OpClass", bound="type[Op]")


ConstantCut = Callable[[Sequence["npt.NDArray[np.generic] | None"]], "npt.NDArray[np.generic]"]
"""Makes the constant that a part reads in place of one without dense rows (a list of indices, a sparse matrix), from
the arrays of all inputs of the node; None for computed and absent inputs."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Some output rows of an op: the op that makes just these, and what it reads.

    `spans` has one entry per input: the rows (start, stop) read, a `ConstantCut` for a constant without such rows of
    which the part needs some elements, or None if the input is read whole (weights, biases, broadcast operands, absent
    inputs).
    """

    op: Op
    spans: tuple[Span | ConstantCut | None, ...]


@dataclass(frozen=True)
class Op:
    """What a node does. A subclass is a frozen dataclass whose fields are the op's parameters.

    An op holds what does not depend on a machine: its ONNX name, traits, shape rule and row rule. How a room of the
    compiler treats it (ONNX export, GPU work, PIM work, ...) is a rule in that room's `OpRules`.
    """

    onnx_names: ClassVar[tuple[str, ...]] = ()
    """ONNX op_types that always map to this op; the first is its name unless `onnx_name` is overridden."""

    onnx_domain: ClassVar[str] = ""
    """The operator set that defines them."""

    is_contraction: ClassVar[bool] = False
    """Sums of products over a dimension that two operands share: a convolution or a matrix product."""

    is_matrix_product: ClassVar[bool] = False
    """A BLAS-style matrix product, whose operands may be transposed or pitched in memory."""

    is_elementwise: ClassVar[bool] = False
    """An output element is a function of the same element of every (broadcast) input."""

    is_sparse: ClassVar[bool] = False
    """Reads the structure of a graph, and has no ONNX operator of its own."""

    least_ranks: ClassVar[tuple[int, ...]] = ()
    """The minimum rank of each required operand."""

    content_operands: ClassVar[tuple[int, ...]] = ()
    """Inputs whose elements, if constant, determine the op's cost: for example, the pattern of a sparse matrix.

    Their digests are part of every key under which a cost is cached. All other costs follow from the op and its
    operands' shapes and element types.
    """

    cut_operands: ClassVar[tuple[int, ...]] = ()
    """Inputs that must be constants, if present, to compute the op in parts, which read a `ConstantCut` of them."""

    @property
    def onnx_name(self) -> str:
        """The name users know the op by: its ONNX op_type."""
        return self.onnx_names[0]

    def content_positions(self, inputs: int) -> tuple[int, ...]:
        """`content_operands` for a node with `inputs` inputs."""
        return self.content_operands

    @property
    def is_movement(self) -> bool:
        """Whether the op moves elements and computes none."""
        return False

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The output's shape.

        Args:
            shapes: the inputs' shapes, None for absent optional inputs; the first is present.

        Raises:
            GraphError: the shapes do not fit the op.
        """
        raise NotImplementedError(f"{type(self).__name__} has no shape rule")

    def dtype_rule(self, dtypes: Sequence[str]) -> str:
        """The output's element type, from those of the inputs that are present."""
        return dtypes[0]

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """How the op makes its output rows [start, stop); `out_shape` has two dims or more. See `part_rows`."""
        return Refusal(f"{self.onnx_name} is not computed row by row")

    def part_rows(self, in_shapes: Shapes, out_shape: Shape | None, start: int, stop: int) -> RowPart | Refusal:
        """How the op makes its output rows [start, stop).

        Args:
            in_shapes: shapes of its inputs, None for absent ones.
            out_shape: shape of its (only) output.
            start, stop: output rows, 0 <= start < stop <= rows of the output.

        Returns:
            The part, or why there is none.
        """
        if out_shape is None or len(out_shape) < 2:
            return Refusal(f"{self.onnx_name} has no rows: its output has {rank_text(out_shape)}")
        return self.row_rule(in_shapes, out_shape, start, stop)

    def refuse(self, message: str) -> NoReturn:
        """Refuses operands that do not fit.

        Raises:
            GraphError: always.
        """
        raise GraphError(f"{self.onnx_name}: {message}")


OPS: Registry[str, type[Op]] = Registry("ops")
"""Every op by the name of its class, which is its name in the text form."""


def register_op(kind: OpClass) -> OpClass:
    """Registers an op for the text form and the measured tables.

    Raises:
        ValueError: there is already an op with that name.
    """
    OPS.add(kind.__name__, kind)
    return kind


def op_of_onnx_name(name: str) -> type[Op] | None:
    """The op that an ONNX op_type always maps to; None if there is none."""
    return next((kind for kind in OPS.values() if name in kind.onnx_names), None)
