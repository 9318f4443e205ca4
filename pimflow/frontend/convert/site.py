"""The input and the result of a conversion, and the registry of conversions by ONNX operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pimflow.errors import GraphError
from pimflow.ir import Array, AttributeValue, Node, OnnxOp, Op, Value
from pimflow.ir.registry import Registry
from pimflow.records import NamedTuple, dataclass

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""Element types of the products and windows that the compiler reasons about; others stay opaque."""

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class Typed(NamedTuple):
    """A chain of ops; the first reads `inputs`, each later one the previous result.

    `extra_operands` holds the additional operands of a later op, by its position. Operands are values of the graph (""
    if absent) or constants to be added.
    """

    ops: tuple[Op, ...]
    inputs: tuple[str | Array, ...]
    extra_operands: Mapping[int, tuple[str | Array, ...]] = {}


@dataclass(frozen=True)
class Site:
    """An opaque node and what is known about its inputs."""

    node: Node
    values: Mapping[str, Value]
    constants: Mapping[str, Array]
    opset: int

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The node's attributes."""
        assert isinstance(self.node.op, OnnxOp)
        return dict(self.node.op.attributes)

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def value(self, index: int = 0) -> Value:
        """An input's value."""
        return self.values[self.node.inputs[index]]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """An input's shape; () if it is unknown or absent."""
        return self.value(index).shape or () if self.has(index) else ()

    def is_float(self) -> bool:
        """Whether the first input is of a type that the compiler reasons about."""
        return self.value().dtype in FLOATS

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute of integers; None if it is absent."""
        value = self.attributes.get(name)
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value if isinstance(item, int))
        return None

    def numbers(self, name: str) -> tuple[float, ...]:
        """An attribute of floats; () if it is absent."""
        value = self.attributes.get(name)
        return tuple(item for item in value if isinstance(item, float)) if isinstance(value, tuple) else ()

    def constant(self, index: int) -> Array | None:
        """A constant input's elements; None if it is absent or computed."""
        return self.constants.get(self.node.inputs[index]) if self.has(index) else None

    def constant_integers(self, index: int) -> tuple[int, ...] | None:
        """A constant input as integers; None if it is absent, computed, or not of an integer type."""
        array = self.constant(index)
        return None if array is None or array.dtype.kind not in "iu" else tuple(int(item) for item in array.reshape(-1))

    def axis(self, axis: int) -> int:
        """An axis of the first input, counted from the front.

        Raises:
            GraphError: the input has no such axis.
        """
        rank = len(self.shape())
        if not -rank <= axis < rank:
            raise GraphError(f"{self.node.kind}: axis {axis} of an input with {rank} dims")
        return axis % rank

    def out_shape(self) -> tuple[int, ...] | None:
        """The first output's shape; None if it is not known yet."""
        value = self.values.get(self.node.output)
        return None if value is None else value.shape


Conversion = Callable[[Site], "Typed | Op | None"]
"""Converts an opaque node, in its form of any opset since 7, to its exact typed form; None if it has none.

Raises a `GraphError` if operands and attributes do not fit each other."""

CONVERSIONS: Registry[tuple[str, str], Conversion] = Registry("conversions")
"""The conversions, by domain and op_type."""


def converts(*op_types: str, domain: str = "") -> Callable[[Conversion], Conversion]:
    """A decorator that registers a function as the conversion of some operators.

    Raises:
        ValueError: an operator already has a conversion.
    """
    return CONVERSIONS.register(*((domain, op_type) for op_type in op_types))


def identity(site: Site) -> Typed:
    """The node as an Identity of its first input."""
    return Typed((OnnxOp("Identity"),), site.node.inputs[:1])
