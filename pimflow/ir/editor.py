"""`GraphEditor`: collects edits of one graph and makes the new one, in time linear in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pimflow.errors import GraphError
from pimflow.ir.graph import Array, Graph, Node, Value, topological_order
from pimflow.ir.names import FreshNames
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.packed import Packed


class GraphEditor:
    """Collects edits of one graph, then makes the new graph: linear in nodes and edits.

    Replacements take the position of the node that they replace, so the order stays topological as long as they read
    only what the original could read (or each other, in the order given); otherwise `finish` sorts.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._values = dict(graph.values)
        self._constants = dict(graph.constants)
        self._packed = dict(graph.packed)
        self._replacements: dict[str, tuple[Node, ...]] = {}
        self._renames: dict[str, str] = {}
        self._rename_targets: set[str] = set()
        self._resolved: dict[str, str] = {}
        self._value_names = FreshNames(graph.values)
        self._node_names = FreshNames(graph.node_by_name)

    @property
    def changed(self) -> bool:
        """Whether any edit was made."""
        return bool(self._replacements or self._renames)

    def value(self, name: str) -> Value:
        """A value of the graph or one added since."""
        return self._values[name]

    def constant(self, name: str) -> Array | None:
        """A constant of the graph or one added since; None for any other value."""
        return self._constants.get(name)

    def new_value(self, base: str, shape: Sequence[int] | None, dtype: str) -> str:
        """Adds a value under a fresh name made from `base`; returns the name."""
        name = self._value_names.fresh(base)
        self._values[name] = Value(name, None if shape is None else tuple(shape), dtype)
        return name

    def new_constant(self, base: str, array: Array, packed: Packed | None = None) -> str:
        """Adds a constant under a fresh name made from `base`; returns the name.

        Args:
            base: what its name is made from.
            array: its elements.
            packed: how the model stores them, if not as they are.
        """
        name = self._value_names.fresh(base)
        self.set_constant(name, array, packed)
        return name

    def set_constant(self, name: str, array: Array, packed: Packed | None = None) -> None:
        """Makes a value of the graph a constant; the caller must remove its producer."""
        self._values[name] = Value(name, array.shape, array.dtype.name)
        self._constants[name] = array
        if packed is not None:
            self._packed[name] = packed

    def new_node_name(self, base: str) -> str:
        """A fresh node name made from `base`."""
        return self._node_names.fresh(base)

    def replace_node(self, name: str, nodes: Sequence[Node]) -> None:
        """Replaces the node `name` of the graph by `nodes` (if empty, removes it). The last call for a node wins.

        Raises:
            GraphError: the graph has no such node.
        """
        self._replacements[self.graph.node(name).name] = tuple(nodes)

    def rename_uses(self, old: str, new: str) -> None:
        """Makes every reader of the value `old` (graph outputs too) read `new`.

        The node that makes `new` keeps reading `old`, so that a node can be inserted after a value.
        """
        self._renames[old] = new
        self._rename_targets.add(new)
        self._resolved.clear()

    def _resolve(self, name: str) -> str:
        """The final name of a value after all renames; cached, so that a chain of renames is walked only once."""
        path = []
        while name in self._renames:
            path.append(name)
            if len(path) > len(self._renames):
                raise GraphError(f"renames of the value {name!r} go in a circle")
            name = self._resolved.get(name, self._renames[name])
        self._resolved.update(dict.fromkeys(path, name))
        return name

    def _renamed(self, node: Node) -> Node:
        if self._renames.keys().isdisjoint(node.inputs):
            return node
        inputs = tuple(name if self._leads_to(name, node.outputs) else self._resolve(name) for name in node.inputs)
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def _leads_to(self, name: str, outputs: tuple[str, ...]) -> bool:
        """Whether renames of a value pass through one of `outputs`: their node was inserted after the value."""
        end = self._resolve(name)
        if self._rename_targets.isdisjoint(outputs) or all(self._resolve(output) != end for output in outputs):
            return False
        while name != end:
            name = self._renames[name]
            if name in outputs:
                return True
        return False

    def finish(self, nodes: Sequence[Node] | None = None) -> Graph:
        """The new graph: edits applied, unused values and constants dropped, nodes in topological order.

        A graph output that was renamed keeps its public name: the producer of the new value writes it under that name.

        Args:
            nodes: all nodes of the new graph, from a pass that rebuilds the list itself; by default, the graph's nodes
                with the replacements applied.

        Raises:
            GraphError: the edits left a cycle, of nodes or of renames.
        """
        if nodes is None:
            nodes = [new for node in self.graph.nodes for new in self._replacements.get(node.name, (node,))]
        if self._renames:
            nodes = [self._renamed(node) for node in nodes]
        outputs = [self._resolve(name) for name in self.graph.outputs]
        nodes = self._keep_output_names(list(nodes), outputs)
        ordered = topological_order(nodes)
        used = set(self.graph.inputs) | set(self.graph.outputs)
        for node in ordered:
            used.update(node.inputs)
            used.update(node.outputs)
        return self.graph.replace(
            nodes=ordered,
            values={name: value for name, value in self._values.items() if name in used},
            constants={name: array for name, array in self._constants.items() if name in used},
            packed={name: packed for name, packed in self._packed.items() if name in used},
        )

    def _keep_output_names(self, nodes: list[Node], outputs: list[str]) -> list[Node]:
        """Makes the producers of `outputs` write the graph's output names; adds a copy where one cannot."""
        names: dict[str, str] = {}
        copies: dict[str, Node] = {}
        produced = {output for node in nodes for output in node.outputs}
        renames = {
            public: actual for public, actual in zip(self.graph.outputs, outputs, strict=True) if public != actual
        }
        for public, actual in renames.items():
            if public in self.graph.inputs:
                raise GraphError(f"the graph output {public!r} is an input too: it cannot become {actual!r}")
            if public in produced or public in self._constants:
                names[public] = self._free_name(public)
            if actual in produced and actual not in self.graph.outputs and actual not in names:
                names[actual] = public
            else:
                copy_name = self.new_node_name(f"{public}_identity")
                copies[public] = Node(OnnxOp("Identity"), (actual,), (public,), copy_name)
        if not names and not copies:
            return nodes

        def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(names.get(value, value) for value in values)

        kept = [replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs)) for node in nodes]
        return kept + [replace(node, inputs=renamed(node.inputs)) for node in copies.values()]

    def _free_name(self, public: str) -> str:
        """Adds a new value for one whose name a graph output takes over; returns the new name."""
        old = self._values[public]
        new = self.new_value(f"{public}_before", old.shape, old.dtype)
        if public in self._constants:
            self.set_constant(new, self._constants.pop(public), self._packed.pop(public, None))
        return new
