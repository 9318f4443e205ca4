"""The search's queries about parts of a graph: where rows can be split, which values leave, which nodes form a run.

All are cheap: they visit the nodes in question and their surroundings, never the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary, ref

from pimflow.ir.analysis.rows import row_count
from pimflow.ir.graph import Graph, Node
from pimflow.ir.ops.base import RowPart
from pimflow.ir.ops.contraction import Contraction, Conv2d
from pimflow.ir.refusal import Refusal
from pimflow.records import NamedTuple

_NEAR = 2048
"""The maximum number of nodes of a run: 24 units, each with up to 64 nodes in its epilogue. Successive runs share most
of their nodes."""

_LOOK_BACK = 256
"""The maximum number of nodes visited to show that a value does not depend on a region; else it is assumed to."""


def leaving_values(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Outputs of the nodes that other nodes read or that are graph outputs, in the order in which they are made."""
    names = {node.name for node in nodes}
    made = (output for node in nodes for output in node.outputs if output)
    return tuple(
        value
        for value in made
        if value in graph.outputs or not names.issuperset(user.name for user in graph.users(value))
    )


class RowParts(dict[tuple[str, int, int], "RowPart | Refusal"]):
    """How the nodes of a graph make their output rows [start, stop), by (name, start, stop), found when first asked
    for; refusals name the node."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = ref(graph)

    def __missing__(self, key: tuple[str, int, int]) -> RowPart | Refusal:
        name, start, stop = key
        graph = self._graph()
        assert graph is not None, "who asks for parts has the graph"
        part = self[key] = _node_part(graph, graph.node(name), start, stop)
        return part


_PARTS: WeakKeyDictionary[Graph, RowParts] = WeakKeyDictionary()


def node_part(graph: Graph, node: Node, start: int, stop: int) -> RowPart | Refusal:
    """How the node of a graph makes its output rows [start, stop); refusals name the node."""
    return row_parts(graph)[node.name, start, stop]


def row_parts(graph: Graph) -> RowParts:
    """`node_part` for one graph, for callers that need thousands of parts.

    Kept as long as the graph lives: thousands of ways to split a region have most of their parts in common.
    """
    parts = _PARTS.get(graph)
    if parts is None:
        parts = _PARTS[graph] = RowParts(graph)
    return parts


class Reading(NamedTuple):
    """Who reads a node.

    Args:
        readers: the nodes that read it, each with the places of the operands that it makes.
        is_output: whether it makes an output of the graph.
    """

    readers: Mapping[str, Sequence[int]]
    is_output: bool


class Readings(dict[str, Reading]):
    """Who reads the nodes of a graph, by name, found when first asked for."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = ref(graph)

    def __missing__(self, name: str) -> Reading:
        graph = self._graph()
        assert graph is not None, "who asks for readers has the graph"
        outputs = graph.node(name).outputs
        users = (user for output in outputs for user in graph.users(output))
        readers = {user.name: [at for at, operand in enumerate(user.inputs) if operand in outputs] for user in users}
        reading = self[name] = Reading(readers, not set(graph.outputs).isdisjoint(outputs))
        return reading


_READINGS: WeakKeyDictionary[Graph, Readings] = WeakKeyDictionary()


def readings(graph: Graph) -> Readings:
    """Who reads the nodes of a graph. Kept as long as the graph lives, like `row_parts`."""
    found = _READINGS.get(graph)
    if found is None:
        found = _READINGS[graph] = Readings(graph)
    return found


def _node_part(graph: Graph, node: Node, start: int, stop: int) -> RowPart | Refusal:
    if len(node.outputs) != 1:
        return Refusal(f"{node.name}: {node.kind} has {len(node.outputs)} outputs")
    for name in [node.inputs[index] for index in node.op.cut_operands if index < len(node.inputs)]:
        if name and name not in graph.constants:
            return Refusal(f"{node.name}: {name!r} is computed, and its parts have to be constants")
    values = graph.values
    shapes = [values[name].shape if name else None for name in node.inputs]
    part = node.op.part_rows(shapes, values[node.outputs[0]].shape, start, stop)
    return part.at(node.name) if isinstance(part, Refusal) else part


def node_rows(graph: Graph, node: Node) -> int:
    """Rows of the node's first output; 0 if it has none, or the node leaves that output out."""
    first = node.outputs[0]
    return row_count(graph.values[first].shape) if first else 0


def column_axis(graph: Graph, node: Node) -> int:
    """The axis of a contraction's output that holds its columns: a convolution's channels, else the last axis."""
    rank = len(graph.shape(node.output))
    return 1 if isinstance(node.op, Conv2d) else rank - 1


def node_columns(graph: Graph, node: Node) -> int:
    """Columns of a contraction's output: its channels, or N; 1 if it is the product of two vectors."""
    shape = graph.shape(node.output)
    return shape[column_axis(graph, node)] if shape else 1


def k_axes(graph: Graph, node: Node) -> tuple[int, int]:
    """The axes of a contraction's activations and weights over which it sums: input channels, or K."""
    if isinstance(node.op, Conv2d):
        return 1, 1
    assert isinstance(node.op, Contraction), "only contractions sum over products"
    left, right = (len(graph.shape(name)) for name in node.inputs[:2])
    return left - 1, right - 2 if node.op.channel_axis % right == right - 1 else right - 1


def node_k(graph: Graph, node: Node) -> int:
    """The size of the dimension that a contraction of one group sums over: its input channels, or K."""
    return graph.shape(node.inputs[0])[k_axes(graph, node)[0]]


def run_refusal(graph: Graph, nodes: Sequence[Node]) -> Refusal | None:
    """Why the nodes cannot be a run (which may branch): each but the last has to be read by a later one."""
    read = {name for node in nodes for name in node.inputs}
    for node in nodes[:-1]:
        if read.isdisjoint(node.outputs):
            return Refusal(f"{node.name}: is not read within the run")
    return None


def cut_subgraph(graph: Graph, node_names: Iterable[str]) -> Graph:
    """The named nodes as a graph of their own, in time linear in the region.

    Its inputs are the values read from outside; its outputs are those read outside or listed as outputs of the graph
    (every unread value, if there are none). Constants are shared, not copied.
    """
    position = graph.position
    nodes = sorted((graph.node(name) for name in set(node_names)), key=lambda node: position[node.name])
    made = {output for node in nodes for output in node.outputs if output}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    outputs = leaving_values(graph, nodes) or tuple(name for name in made if not graph.users(name))
    return Graph(
        name=graph.name,
        inputs=tuple(name for name in read if name not in constants),
        outputs=outputs,
        nodes=tuple(nodes),
        values={name: graph.values[name] for name in (*read, *sorted(made))},
        constants=constants,
        opset=graph.opset,
    )


def pipeline_refusal(graph: Graph, run: Sequence[str]) -> Refusal | None:
    """Why these nodes, in this order, cannot be cut into stages by rows, or None.

    Whether particular stages are possible is decided by `why_not`: a stage may lie wholly in some node's padding.
    """
    nodes = [graph.node(name) for name in run]
    if len(nodes) < 2:
        return Refusal("a pipeline needs at least two nodes")
    refusal = run_refusal(graph, nodes)
    if refusal is not None:
        return refusal
    rows = node_rows(graph, nodes[-1])
    if rows < 2:
        return Refusal(f"{nodes[-1].name}: {rows} output rows cannot be cut into stages")
    growing = GrowingRun(graph)
    for node in nodes:
        growing.add(node)
    return growing.refusal


class OperandReads(NamedTuple):
    """A node's operands as runs need them: why its rows do not follow from rows of the operands, or None; the positions
    of the producers of operands that it reads whole, in operand order; the positions of all producers, last first."""

    refusal: Refusal | None
    whole: tuple[int, ...]
    producers: tuple[int, ...]


def operand_reads(graph: Graph) -> Callable[[str], OperandReads]:
    """A cached function from a node's name to its `OperandReads`: runs that grow from neighbours need the same ones
    again and again, and a node may read hundreds of others."""
    parts, position = row_parts(graph), graph.position

    @lru_cache(_NEAR)
    def reads_of(name: str) -> OperandReads:
        node = graph.node(name)
        part = parts[node.name, 0, max(node_rows(graph, node), 1)]
        producers = sorted({position[producer.name] for producer in _producers(graph, node)}, reverse=True)
        if isinstance(part, Refusal):
            return OperandReads(part, (), tuple(producers))
        read_whole = (graph.producer(name) for name, span in zip(node.inputs, part.spans, strict=True) if span is None)
        return OperandReads(None, tuple(position[whole.name] for whole in read_whole if whole), tuple(producers))

    return reads_of


class GrowingRun:
    """A run that grows by one node at a time, in execution order, as long as each node's rows follow from earlier ones.

    `refusal` says why some node's rows do not, else None. It is permanent, since later nodes are not read by earlier
    ones. `is_read` is whether each node but the last is read by a later one.
    """

    def __init__(self, graph: Graph, reads_of: Callable[[str], OperandReads] | None = None) -> None:
        self.refusal: Refusal | None = None
        self._graph = graph
        self._members: set[int] = set()
        self._unread: set[int] = set()
        self._first = len(graph.nodes)
        self._reads_of = reads_of or operand_reads(graph)

    @property
    def is_read(self) -> bool:
        """Whether each node but the last is read by a later one."""
        return len(self._unread) <= 1

    def add(self, node: Node) -> None:
        """Adds the next node."""
        if self.refusal is not None:
            return
        place, members, unread = self._graph.position[node.name], self._members, self._unread
        refusal, whole, producers = self._reads_of(node.name)
        members.add(place)
        first = self._first = min(self._first, place)
        stays_inside = True
        for producer in producers:
            if producer < first:
                break
            stays_inside = stays_inside and producer in members
            unread.discard(producer)
        unread.add(place)
        self.refusal = refusal or self._reading_whole(node, whole)
        if self.refusal is None and not stays_inside:
            names = {self._graph.nodes[member].name for member in members}
            self.refusal = _outside_dependence(self._graph, node, names, first)

    def _reading_whole(self, node: Node, whole: Iterable[int]) -> Refusal | None:
        """A refusal if the node reads the result of a member whole, else None."""
        for place in whole:
            if place in self._members:
                return Refusal(f"{node.name}: reads {self._graph.nodes[place].name} whole, not row by row")
        return None


def outside_dependence(graph: Graph, node: Node, members: Collection[str]) -> Refusal | None:
    """Why a value that the node reads from outside the members may depend on one of them, or None."""
    return _outside_dependence(graph, node, members, _first(graph, members))


def _first(graph: Graph, members: Iterable[str]) -> int:
    position = graph.position
    return min([position[name] for name in members])


def _outside_dependence(graph: Graph, node: Node, members: Container[str], first: int) -> Refusal | None:
    """`outside_dependence`, given the position of the first member."""
    position = graph.position
    visited: set[str] = set()
    worklist = [node]
    while worklist:
        reader = worklist.pop()
        for producer in _producers(graph, reader):
            if producer.name in visited or position[producer.name] < first:
                continue
            if producer.name in members:
                if reader is node:
                    continue
                return Refusal(f"{node.name}: reads a value from outside the region that depends on the region")
            visited.add(producer.name)
            if len(visited) > _LOOK_BACK:
                return Refusal(f"{node.name}: reads a value from outside the region that may depend on the region")
            worklist.append(producer)
    return None


def _producers(graph: Graph, node: Node) -> Iterator[Node]:
    for name in node.inputs:
        producer = graph.producer(name)
        if producer is not None:
            yield producer
