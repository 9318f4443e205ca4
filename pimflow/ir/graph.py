"""`Graph`, `Node` and `Value`: the whole program, immutable, in topological order.

A graph is never changed; `GraphEditor` collects edits and makes a new one in time linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphError, counted, one_line
from pimflow.ir.ops.base import Op
from pimflow.ir.packed import Packed
from pimflow.ir.placement import UNPLACED, Placement
from pimflow.records import dataclass

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's name, shape and element type.

    `shape` is None if the value has no static shape (data-dependent sizes, sequences); only `OnnxOp`s use such values.
    `dtype` is numpy's name ("float32", "int64", "bool", ..., "bfloat16"); "" if unknown.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements; 0 if the shape is unknown."""
        if self.shape is None:
            return 0
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def type_text(self) -> str:
        """Element type and shape, as messages show them: "float32[1, 3]"."""
        return f"{self.dtype or 'of unknown type'}{'' if self.shape is None else list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. An absent optional input is "" (as in ONNX).

    `placement` says where and when it runs. `tags` are free notes for readers, kept by rewrites and written to ONNX
    `metadata_props`: sorted (key, value) pairs of strings.
    """

    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str
    placement: Placement = UNPLACED
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def output(self) -> str:
        """The first output's name."""
        return self.outputs[0]

    @property
    def kind(self) -> str:
        """The op's ONNX name."""
        return self.op.onnx_name

    @property
    def device(self) -> str | None:
        """The device that the node runs on; None while undecided."""
        return self.placement.device

    def placed(self, **fields: Any) -> Node:
        """The same node with these fields of its placement replaced."""
        placement = _with(self.placement, tuple(fields.items()))
        return Node(self.op, self.inputs, self.outputs, self.name, placement, self.tags)


@lru_cache(maxsize=1 << 12)
def _with(placement: Placement, fields: tuple[tuple[str, Any], ...]) -> Placement:
    """A placement with some fields replaced. Cached: a search places tens of thousands of nodes in a few ways."""
    return replace(placement, **dict(fields))


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A program: nodes in topological order over named values.

    Dictionaries are copied; read-only views, such as those of another graph, are kept.

    Args:
        name: the model's name.
        inputs, outputs: names of graph inputs and outputs, in order. Constants are not inputs.
        nodes: in topological order; node names are unique.
        values: every value that a node, input, output or constant names.
        constants: arrays by value name (never written to; may be memory-mapped).
        opset: ONNX opset version by domain ("" is the default domain).
        packed: for constants that the model stores in fewer bits, how it does so, by name; see `packed_form`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array]
    opset: Mapping[str, int] = field(default_factory=lambda: {"": 17})
    packed: Mapping[str, Packed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "constants", "opset", "packed"):
            given = getattr(self, name)
            if type(given) is not MappingProxyType:  # such as those of another graph
                object.__setattr__(self, name, MappingProxyType(dict(given)))

    def __reduce__(self) -> tuple[type[Graph], tuple[Any, ...]]:
        """For copy and pickle: the fields, with plain dictionaries instead of read-only views of them."""
        parts = (getattr(self, item.name) for item in fields(self))
        return Graph, tuple(dict(part) if isinstance(part, MappingProxyType) else part for part in parts)

    def __repr__(self) -> str:
        ends = f"inputs {', '.join(self.inputs[:8])}, outputs {', '.join(self.outputs[:8])}"
        return one_line("Graph", f"{self.name}: {counted(len(self.nodes), 'node')}, {ends}")

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def _producers(self) -> Mapping[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def _users(self) -> Mapping[str, tuple[Node, ...]]:
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    users.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in users.items()}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Index of every node in the topological order, by name."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    def node(self, name: str) -> Node:
        """The node with this name.

        Raises:
            GraphError: there is no such node.
        """
        try:
            return self.node_by_name[name]
        except KeyError:
            raise GraphError(f"graph {self.name!r} has no node {name!r}") from None

    def producer(self, value: str) -> Node | None:
        """The node that makes a value; None for inputs and constants."""
        return self._producers.get(value)

    def users(self, value: str) -> tuple[Node, ...]:
        """The nodes that read a value, in topological order, each once."""
        return self._users.get(value, ())

    def value(self, name: str) -> Value:
        """The value with this name."""
        return self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's static shape.

        Raises:
            GraphError: the value has none.
        """
        shape = self.values[name].shape
        if shape is None:
            raise GraphError(f"value {name!r} has no static shape")
        return shape

    def in_values(self, node: Node) -> tuple[Value | None, ...]:
        """The values a node reads, None for absent optional inputs."""
        values = self.values
        return tuple([values[name] if name else None for name in node.inputs])

    def out_values(self, node: Node) -> tuple[Value, ...]:
        """The values a node makes (unused optional outputs left out)."""
        values = self.values
        return tuple([values[name] for name in node.outputs if name])

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant of the graph."""
        return name in self.constants

    def packed_form(self, name: str) -> Packed | None:
        """How the model stores a constant in fewer bits; None if it does not, or if the constant has been replaced."""
        packed = self.packed.get(name)
        return packed if packed is not None and packed.array is self.constants.get(name) else None

    @property
    def constant_bytes(self) -> int:
        """Total size of all constants in bytes, as the model stores them."""
        return sum(map(self.stored_bytes, self.constants))

    def stored_bytes(self, name: str) -> int:
        """Size of a constant in bytes, as the model stores it."""
        packed = self.packed_form(name)
        return self.constants[name].nbytes if packed is None else packed.bytes

    def activations(self, node: Node) -> Iterator[str]:
        """The inputs of a node that are not constants, in order."""
        return (name for name in node.inputs if name and name not in self.constants)

    def replace(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        nodes: Iterable[Node] | None = None,
        values: Mapping[str, Value] | None = None,
        constants: Mapping[str, Array] | None = None,
        opset: Mapping[str, int] | None = None,
        packed: Mapping[str, Packed] | None = None,
    ) -> Graph:
        """The same graph with some fields replaced."""
        return Graph(
            name=self.name if name is None else name,
            inputs=self.inputs if inputs is None else tuple(inputs),
            outputs=self.outputs if outputs is None else tuple(outputs),
            nodes=self.nodes if nodes is None else tuple(nodes),
            values=self.values if values is None else values,
            constants=self.constants if constants is None else constants,
            opset=self.opset if opset is None else opset,
            packed=self.packed if packed is None else packed,
        )


def topological_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in topological order: in the given order if that is one already (stable, linear time).

    Raises:
        GraphError: the nodes form a cycle.
    """
    made: set[str] = {output for node in nodes for output in node.outputs if output}
    ready: set[str] = set()
    if _in_order(nodes, made, ready):
        return tuple(nodes)
    producer = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    order: list[Node] = []
    state = [0] * len(nodes)  # 0 new, 1 open, 2 done
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            index = stack[-1]
            if state[index] == 2:
                stack.pop()
                continue
            pending = [producer[name] for name in nodes[index].inputs if name in producer]
            pending = [other for other in pending if state[other] != 2]
            if not pending:
                state[index] = 2
                order.append(nodes[index])
                stack.pop()
                continue
            if state[index] == 1:
                raise GraphError(f"the nodes form a cycle through {nodes[index].name!r}")
            state[index] = 1
            stack.extend(reversed(pending))
    return tuple(order)


def _in_order(nodes: Sequence[Node], made: set[str], ready: set[str]) -> bool:
    for node in nodes:
        if any(name in made and name not in ready for name in node.inputs):
            return False
        ready.update(node.outputs)
    return True
