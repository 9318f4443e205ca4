"""Expansion of ONNX operators that contain a product, so that a unit can compute that product.

On the host such an operator is one kernel, and is costed as one. If its product leaves the host, the operator is
expanded: the product becomes a node for the unit, and what comes before and after it becomes nodes of the host, each
with its own cost. So a plan loses the benefit of the operator's fusion only if it takes the operator apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape
from pimflow.ir.graph import Array, Graph, Node, Value
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.opaque import AttributeValue, OnnxOp
from pimflow.ir.packed import Packed
from pimflow.ir.refusal import Refusal
from pimflow.ir.registry import Registry
from pimflow.ir.shapes import infer
from pimflow.records import NamedTuple

CONTRIB = "com.microsoft"
"""ONNX Runtime's own operators."""


class Expansion(NamedTuple):
    """A node's expansion: a graph with the same inputs and outputs, and the name of the product in it."""

    graph: Graph
    product: str


Rule = Callable[["Writer"], "Refusal | None"]
"""Writes the nodes; or returns why the product cannot be taken out, in which case the nodes written are discarded."""

EXPANSIONS: Registry[tuple[str, str], Rule] = Registry("expansions")
"""The expansion rules, by domain and op_type."""


UNSCALED: Registry[tuple[str, str], bool] = Registry("operators that sum integers")
"""Operators whose results are plain sums of products of bytes, without the scales that bring them to a model's own
range, by domain and op_type."""


def expands(*op_types: str, domain: str = "", unscaled: bool = False) -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the expansion rule of some operators.

    Args:
        op_types: op_types of the operators.
        domain: domain of the operators.
        unscaled: whether their results are plain sums of products of bytes.

    Raises:
        ValueError: an operator already has a rule.
    """
    for op_type in op_types if unscaled else ():
        UNSCALED.add((domain, op_type), True)
    return EXPANSIONS.register(*((domain, op_type) for op_type in op_types))


def is_expandable(op: Op) -> bool:
    """Whether the operator has a rule that may take a product out of it."""
    return isinstance(op, OnnxOp) and (op.domain, op.op_type) in EXPANSIONS


LARGEST_BYTE = 255
"""The largest magnitude of an 8-bit operand minus its zero point."""


def sums_integers(op: Op) -> bool:
    """Whether an operator's results are plain sums of products of bytes."""
    return isinstance(op, OnnxOp) and (op.domain, op.op_type) in UNSCALED


def expand(graph: Graph, node: Node, *, elements: bool = True) -> Expansion | Refusal:
    """The node's expansion, or why its product cannot be taken out.

    Args:
        graph: the node's.
        node: a node of the graph whose op `is_expandable`.
        elements: whether constants get their elements; if not, they are zeros that take neither memory nor time.
    """
    assert isinstance(node.op, OnnxOp)
    if any(name and graph.value(name).shape is None for name in (*node.inputs, *node.outputs)):
        return Refusal("the sizes of its operands or results depend on data")
    writer = Writer(graph, node, elements)
    try:
        refusal = EXPANSIONS[node.op.domain, node.op.op_type](writer)
    except GraphError as error:
        return Refusal(f"its operands are not supported ({error})")
    return refusal or writer.finish()


WHOLE: Registry[tuple[str, str], str] = Registry("operators that stay whole")
"""The reasons why operators that multiply have no rule, by domain and op_type."""


def stays(reason: str, *op_types: str, domain: str = "") -> None:
    """Registers the reason why no product can be taken out of some operators.

    Raises:
        ValueError: an operator already has a reason.
    """
    for op_type in op_types:
        WHOLE.add((domain, op_type), reason)


stays("products in a body run with the rest of it, as often as it does", "If", "Loop", "Scan")


def why_whole(graph: Graph, node: Node) -> str:
    """Why no product can be taken out of an operator that multiplies; "" if it is expandable or no reason is known."""
    op = node.op
    if not isinstance(op, OnnxOp) or is_expandable(op):
        return ""
    if op.domain == "" and op.op_type in ("Gemm", PRODUCT.onnx_name):
        value = graph.value(node.inputs[0])
        if value.shape is None:
            return "input has no static, non-empty shape"
        if reason := _too_wide(value.dtype):
            return reason
    return WHOLE.get((op.domain, op.op_type)) or ""


def _too_wide(dtype: str) -> str:
    """Why units do not multiply operands of an element type; "" if they do."""
    if dtype in ("float32", "float16", "bfloat16"):
        return ""
    return f"its operands are {dtype}, units multiply floats of 32 bits and fewer"


class Writer:
    """Writes the nodes of an expansion, and gives access to the attributes and operands of the original node.

    Args:
        graph: the node's.
        node: the node to expand.
        elements: whether constants get their elements.
    """

    def __init__(self, graph: Graph, node: Node, elements: bool) -> None:
        assert isinstance(node.op, OnnxOp)
        self.graph = graph
        self.node = node
        self.op = node.op
        self.opset = graph.opset.get("", 0)
        self._attributes: Mapping[str, AttributeValue] = dict(node.op.attributes)
        self.elements = elements
        self._values = {name: graph.value(name) for name in (*node.inputs, *node.outputs) if name}
        self._constants: dict[str, Array] = {}
        self._packed: dict[str, Packed] = {}
        self._nodes: list[Node] = []
        self._product = self._multiplied = ""

    def has(self, position: int) -> bool:
        """Whether an operand is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def operand(self, position: int) -> str:
        """An operand's name; "" if it is absent."""
        return self.node.inputs[position] if self.has(position) else ""

    def shape(self, name: str) -> Shape:
        """A value's shape; () if it is absent."""
        return self._values[name].shape or () if name else ()

    def dtype(self, name: str) -> str:
        """A value's element type."""
        return self._values[name].dtype

    def constant_at(self, position: int) -> Array | None:
        """An operand's elements; None if it is computed or absent."""
        return self.graph.constants.get(self.operand(position))

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        value = self._attributes.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self._attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def numbers(self, name: str) -> tuple[float, ...]:
        """An attribute of floats; () if it is absent."""
        value = self._attributes.get(name, ())
        items = value if isinstance(value, tuple) else ()
        return tuple(float(item) for item in items if isinstance(item, (int, float)))

    def text(self, name: str, default: str = "") -> str:
        """A string attribute."""
        value = self._attributes.get(name, default)
        return value if isinstance(value, str) else default

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """An attribute of integers."""
        value = self._attributes.get(name, default)
        return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else default

    def constant(self, shape: Shape, dtype: str, make: Callable[[], Array], packed: PackedBy | None = None) -> str:
        """A new constant; its elements are made only if the writer wants them.

        Args:
            shape, dtype: shape and element type of the result of `make`.
            make: makes its elements.
            packed: how the model stores them in fewer bits.
        """
        name = self._fresh(Value("", shape, dtype))
        if not self.elements:
            self._constants[name] = np.broadcast_to(np.zeros((), np.float32), shape)
            return name
        array = np.ascontiguousarray(make()).reshape(shape)
        self._constants[name] = array
        if packed is not None:
            self._packed[name] = Packed(array, *packed)
        return name

    def add(self, op: Op, *inputs: str) -> str:
        """Writes a node of a typed op; returns its result."""
        (result,) = infer(op, [self._values[name] if name else None for name in inputs])
        return self._write(op, inputs, Value("", result.shape, result.dtype))

    def opaque(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape,
        dtype: str,
        *,
        domain: str = "",
        **attributes: AttributeValue,
    ) -> str:
        """Writes a node of an ONNX operator; returns its result, whose type has to be given."""
        op = OnnxOp(op_type, domain, tuple(sorted(attributes.items())))
        given = max((place for place, name in enumerate(inputs, start=1) if name), default=0)
        return self._write(op, tuple(inputs[:given]), Value("", shape, dtype))

    def results(self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attributes: AttributeValue) -> None:
        """Writes the last node: an ONNX operator that produces all results of the original node, one or several."""
        op = OnnxOp(op_type, domain, tuple(sorted(attributes.items())))
        self._nodes.append(Node(op, tuple(inputs), self.node.outputs, self._node_name()))

    def results_of(self, op_type: str, inputs: Sequence[str], types: Sequence[tuple[Shape, str]]) -> tuple[str, ...]:
        """Writes a node of an ONNX operator with several results, whose types have to be given."""
        names = tuple(self._fresh(Value("", shape, dtype)) for shape, dtype in types)
        self._nodes.append(Node(OnnxOp(op_type), tuple(inputs), names, self._node_name()))
        return names

    def product(self, op: Op, *inputs: str) -> str:
        """Writes the product that may leave the host; returns its result."""
        self._multiplied = self.dtype(inputs[0])
        result = self.add(op, *inputs)
        self._product = self._nodes[-1].name
        return result

    def finish(self) -> Expansion | Refusal:
        """The expansion; the last node written produces the results."""
        if reason := _too_wide(self._multiplied):
            return Refusal(reason)
        *before, last = self._nodes
        outputs = tuple(name for name in self.node.outputs if name)
        if last.outputs != self.node.outputs:
            if outputs != self.node.outputs[:1]:
                return Refusal("it produces several values")
            made, wanted = self._values[last.output], self._values[self.node.output]
            if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
                return Refusal("its result does not have the type that follows from its operands")
            last = Node(last.op, last.inputs, outputs, last.name)
        nodes = [*before, last]
        read = [name for node in nodes for name in node.inputs if name]
        constants = {
            name: self.graph.constants[name] for name in read if self.graph.is_constant(name)
        } | self._constants
        named = {*read, *(name for node in nodes for name in node.outputs)}
        made_inside = {name for node in nodes for name in node.outputs}
        graph = Graph(
            name=self.node.name,
            inputs=tuple(dict.fromkeys(name for name in read if name not in constants and name not in made_inside)),
            outputs=outputs,
            nodes=tuple(nodes),
            values={name: value for name, value in self._values.items() if name in named},
            constants={name: array for name, array in constants.items() if name in named},
            opset=self.graph.opset,
            packed=self._packed,
        )
        return Expansion(graph, self._product)

    def _write(self, op: Op, inputs: tuple[str, ...], value: Value) -> str:
        output = self._fresh(value)
        self._nodes.append(Node(op, inputs, (output,), self._node_name()))
        return output

    def _node_name(self) -> str:
        return f"{self.node.name}_{len(self._nodes)}"

    def _fresh(self, value: Value) -> str:
        name = f"{next(filter(None, self.node.outputs))}_{len(self._values)}"
        while name in self.graph.values or name in self._values:
            name += "_"
        self._values[name] = Value(name, value.shape, value.dtype)
        return name


PackedBy = tuple[OnnxOp, "tuple[Array | None, ...]"]
"""A DequantizeLinear and its operands."""
