"""One walk over a graph that infers the shape and element type of every value, and known values themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from pimflow.errors import ModelError, PimflowError, counted
from pimflow.frontend.body_graph import body_graph
from pimflow.frontend.canonicalising import canonicalised, chosen_places
from pimflow.frontend.convert import CONVERSIONS, TypedForm, typed_form
from pimflow.frontend.importing import import_node
from pimflow.frontend.loops import length_of, with_length
from pimflow.frontend.screening import screen_constants, unfit_operands
from pimflow.frontend.sequences import Element, Part, Sequences
from pimflow.frontend.structure_values import StructureValues
from pimflow.frontend.unrolling import AXES_AS_OPERAND, Iterations, Unrolled, iterations_of
from pimflow.ir import Array, Graph, Node, OnnxOp, Refusal, Value
from pimflow.ir.names import FreshNames
from pimflow.onnxio.captures import capture_count, chosen_branch, graph_attribute, is_counted_loop, rename_names
from pimflow.onnxio.export import opaque_proto
from pimflow.onnxio.folding import evaluate, node_session
from pimflow.onnxio.session import ort_dtype, ran_out_of_resources
from pimflow.onnxio.tensors import (
    MAX_DIMS,
    MAX_ELEMENTS,
    NUMPY_NATIVE,
    ONNX_ERRORS,
    is_boundless,
    sparse_to_array,
    static_shape,
    to_array,
    to_tensor,
    type_proto,
    type_text,
)
from pimflow.records import NamedTuple

SMALL_ELEMENTS = 1024
"""Constants up to this size are passed to shape inference (sizes, axes, scales); larger ones are data."""

TRIAL_ELEMENTS = 2**26
"""The maximum number of operand elements of a node that is run to see whether it can."""

TRIAL_S = 5.0
"""The time limit of such a run (of a Loop, for example) in seconds."""

_PREFIX = re.compile(r"^ONNX Runtime refuses model '.*?': (Node \(.*?\) Op \(.*?\) )?(\[\w+\] )?")
"""The prefix of ONNX Runtime's message before the reason why it refuses a node."""

Types = dict[str, Value]


class Inferred(NamedTuple):
    """A graph with its shapes, and the by-products of inference.

    Args:
        graph: the graph.
        forms: typed forms, by node name.
        known: arrays of the values that do not depend on the graph's inputs, by name, including constants.
        structural: values that depend on inputs that were bound to arrays; `known` has those that still have readers.
        bound: the inputs that were bound to arrays.
    """

    graph: Graph
    forms: Mapping[str, TypedForm]
    known: Mapping[str, Array]
    structural: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()


def infer_graph(
    graph: Graph,
    declared: Mapping[str, Value],
    *,
    judge: bool = True,
    suspect: bool = False,
    bound: dict[str, Array] | None = None,
    unroll: bool = False,
    learnt_apart: bool = False,
) -> Inferred:
    """The graph with all shapes that do not depend on data.

    Sizes are often computed from shapes and constants, so values that do not depend on the graph's inputs are
    evaluated. The nodes that compute them stay: folding them is a rewrite, `FoldConstants`. Only an If with a known
    branch is replaced by that branch, because ONNX infers no shapes for it.

    Our own formulas come first, then ONNX's inference, then ONNX Runtime's, which also covers operators outside the
    standard; last, for such operators and for loops of constant length, the node is run. What other loops carry keeps
    its shape if their body keeps it. Shapes that remain unknown are data-dependent (downstream of NonZero and the like)
    and stay None.

    Args:
        graph: a graph of opaque nodes in topological order, with static input shapes.
        declared: static types that the model itself declares, used if nothing else is known.
        judge: whether a node that cannot run is an error; not so in a body, which may never run.
        suspect: whether ONNX Runtime refused the graph, so that it is asked about every node.
        bound: inputs whose elements are known (the edges of a graph); values that depend only on them are evaluated
            too. The function takes ownership: large arrays are removed once nothing reads them.
        unroll: whether Loops and Scans of known length are replaced by their iterations, which can be differentiated.
        learnt_apart: whether what multiplies weights is not evaluated, even if it depends only on `bound`.

    Raises:
        ModelError: ONNX Runtime refuses a node with constant operands, or one whose operands do not fit each other.
    """
    _check_sizes("", (graph.values[name] for name in graph.inputs))
    arrays = {} if bound is None else bound
    inputs = frozenset(arrays)
    inference = _ShapeInference(graph, declared, judge, suspect, arrays, unroll, learnt_apart)
    for node in graph.nodes:
        inference.visit(node)
        inference.structure.release_read(node)
    inference.structure.release()
    structural = frozenset(inference.structure.names)
    return Inferred(inference.finish(), inference.forms, inference.known, structural, inputs)


class _ShapeInference:
    def __init__(
        self,
        graph: Graph,
        declared: Mapping[str, Value],
        judge: bool,
        suspect: bool,
        bound: dict[str, Array],
        unroll: bool,
        learnt_apart: bool = False,
    ) -> None:
        self.graph = graph
        self.declared = declared
        self.judge = judge
        self.suspect = suspect
        self.unroll = unroll
        self.misfits: dict[str, str] = {}  # why a node's operands do not seem to fit, by node name
        self.values: Types = {name: graph.values[name] for name in (*graph.inputs, *graph.constants)}
        self.constants: dict[str, Array] = dict(graph.constants)
        self.known: dict[str, Array] = {**graph.constants, **bound}
        self.structure = StructureValues(graph, self.known, bound, learnt_apart=learnt_apart)
        self.partial: dict[str, onnx.TypeProto] = {}  # partial types of values without a static shape: rank, some dims
        self.nodes: list[Node] = []
        self.forms: dict[str, TypedForm] = {}
        self.sequences = Sequences()
        self._node_names = FreshNames(graph.node_by_name)
        self._value_names = FreshNames(graph.values)

    def visit(self, node: Node) -> None:
        """Infers the types of the node's results, and the results themselves if they are known."""
        screen_constants(node, self.known)
        branch = chosen_branch(node, self.known)
        if branch is not None:
            self._inline(node, branch)
            return
        node = self._with_known_length(node)
        iterations = iterations_of(node, self.values, self.known) if self.unroll else None
        if iterations is not None:
            self._unroll(node, iterations)
            return
        elements = self.sequences.read(node, self.known)
        if elements is not None:
            node = self._reading(node, elements)
        chosen = chosen_places(node, self.known)
        if chosen is not None:
            node = self._gathered(node, chosen)
        node = canonicalised(node, self.values, self.known, self.graph.opset.get("", 0))
        self.nodes.append(node)
        self.sequences.add(node, self.values, self.known)
        unfit = unfit_operands(node, self.values)
        if unfit:
            raise self._cannot_run(node, unfit)
        arrays = self._evaluate(node)
        if arrays is None or isinstance(arrays, Refusal):
            self.values |= self._types(node)
            self._judge(node)
            _check_sizes(node.name, (self.values[name] for name in node.outputs if name))
            return
        found = {name: array for name, array in zip(node.outputs, arrays, strict=True) if name}
        self.known |= found
        self.values |= {name: Value(name, array.shape, array.dtype.name) for name, array in found.items()}

    def _evaluate(self, node: Node) -> list[Array] | Refusal | None:
        length = self.sequences.length(node)
        if length is not None:
            return [np.array(length)]
        try:
            if self.structure.concerns(node):
                return self.structure.evaluate(node, self.values)
            if self.structure.copies_matrices(node):
                return None
            arrays = self.structure.expanded(node) or evaluate(node, self.graph, self.values, self.known)
            return self.structure.as_views(node, arrays) if isinstance(arrays, list) else arrays
        except ModelError as error:
            self._by_rule(node)
            raise self._cannot_run(node, self.misfits.get(node.name, _reason(error))) from error

    def _with_known_length(self, node: Node) -> Node:
        """A Loop whose body ends it after a known number of iterations, as a Loop of that length."""
        length = length_of(node, self.graph, self.known)
        if length is None:
            return node
        limit = self._value_names.fresh(f"{node.name}/runs")
        self._define(limit, np.array(length))
        return with_length(node, limit)

    def _reading(self, node: Node, elements: Sequence[Element]) -> Node:
        """A SequenceAt or a ConcatFromSequence as the node that reads the same elements."""
        assert isinstance(node.op, OnnxOp)
        if node.kind == "SequenceAt":
            (element,) = elements
            op, inputs = self._cut(node, element) if isinstance(element, Part) else (OnnxOp("Identity"), (element,))
            return replace(node, op=op, inputs=inputs)
        given = dict(node.op.attributes)
        axis, adds_axis = given["axis"], given.get("new_axis", 0) != 0
        parts = [one if isinstance(one, str) else self._before(node, "part", *self._cut(node, one)) for one in elements]
        if adds_axis:
            parts = [self._before(node, "row", *self._unsqueezed(node, name, axis)) for name in parts]
        return replace(node, op=OnnxOp("Concat", "", (("axis", axis),)), inputs=tuple(parts))

    def _cut(self, node: Node, part: Part) -> tuple[OnnxOp, tuple[str, ...]]:
        """What reads a part of a value for a node, a Slice or a Gather: operator and inputs."""
        operands: dict[str, int | list[int]]
        if part.keeps_axis:
            op, operands = OnnxOp("Slice"), {"begin": [part.begin], "end": [part.end], "axis": [part.axis]}
        else:
            op, operands = OnnxOp("Gather", "", (("axis", part.axis),)), {"place": part.begin}
        return op, (part.source, *[self._operand(node, label, value) for label, value in operands.items()])

    def _unsqueezed(self, node: Node, name: str, axis: Any) -> tuple[OnnxOp, tuple[str, ...]]:
        """What adds an axis to a value for a node: operator and inputs."""
        if self.graph.opset.get("", 0) < AXES_AS_OPERAND:
            return OnnxOp("Unsqueeze", "", (("axes", (axis,)),)), (name,)
        return OnnxOp("Unsqueeze"), (name, self._operand(node, "axes", [axis]))

    def _gathered(self, node: Node, places: Array) -> Node:
        """A Compress as the Gather of the places that its condition chooses, in the flat operand if it has no axis."""
        assert isinstance(node.op, OnnxOp)
        axis, source = dict(node.op.attributes).get("axis"), node.inputs[0]
        if axis is None:
            source = self._before(node, "flat", OnnxOp("Reshape"), (source, self._operand(node, "sizes", [-1])))
        operand = self._operand(node, "places", places.tolist())
        return replace(node, op=OnnxOp("Gather", "", (("axis", axis or 0),)), inputs=(source, operand))

    def _operand(self, node: Node, label: str, value: int | list[int]) -> str:
        """The name of a new constant that a node reads."""
        name = self._value_names.fresh(f"{node.name}/{label}")
        self._define(name, np.array(value, np.int64))
        return name

    def _before(self, node: Node, label: str, op: OnnxOp, inputs: tuple[str, ...]) -> str:
        """Walks a new node in front of another one; returns the name of its result."""
        name = self._value_names.fresh(f"{node.name}/{label}")
        self.visit(Node(op, inputs, (name,), self._node_names.fresh(name), node.placement, node.tags))
        return name

    def _inline(self, node: Node, branch: onnx.GraphProto) -> None:
        """Walks the nodes of an If's branch in place of the If."""
        if branch.input or len(branch.output) != len(node.outputs):
            sides = f"{counted(len(branch.input), 'input')} and {counted(len(branch.output), 'output')}"
            raise self._cannot_run(node, f"its branch has {sides}, not 0 and {len(node.outputs)}")
        captured = node.inputs[len(node.inputs) - capture_count(node) :]
        outer = {f"@{index}": name for index, name in enumerate(captured)}
        rename_names(branch, lambda name: outer[name], lambda name: self._value_names.fresh(f"{node.name}/{name}"))
        for tensor in branch.initializer:
            self._define(tensor.name, to_array(tensor))
        for sparse in branch.sparse_initializer:
            self._define(sparse.values.name, sparse_to_array(sparse))
        for proto in branch.node:
            label = self._node_names.fresh(f"{node.name}/{proto.name or proto.op_type}")
            self.visit(import_node(proto, label))
        for result, name in zip(branch.output, node.outputs, strict=True):
            if name:
                label = self._node_names.fresh(f"{node.name}/{name}")
                self.visit(Node(OnnxOp("Identity"), (result.name,), (name,), label, node.placement, node.tags))

    def _unroll(self, node: Node, iterations: Iterations) -> None:
        """Walks the iterations of a Loop or a Scan in place of it. Constants of the body, which may be parameters, are
        shared by all."""
        written = Unrolled(node, iterations, self._value_names, self.graph.opset.get("", 0))
        for name, array in written.constants.items():
            self._define(name, array)
        for proto in written.nodes:
            self.visit(import_node(proto, self._node_names.fresh(f"{node.name}/{proto.name or proto.op_type}")))

    def _define(self, name: str, array: Array) -> None:
        self.constants[name] = self.known[name] = array
        self.values[name] = Value(name, array.shape, array.dtype.name)

    def _types(self, node: Node) -> Types:
        types = {name: Value(name, None, "") for name in node.outputs if name}
        sources = [self._by_rule, self._by_onnx, self._by_ort, self._by_running, self._by_body, self._by_declaration]
        if _is_unlike_onnx(node):
            sources.insert(1, self._by_running)
        for source in sources:
            _refine(types, source(node))
            if all(_is_known(value) for value in types.values()):
                break
        return types

    def _judge(self, node: Node) -> None:
        """Asks ONNX Runtime, the reference, about a node whose operands do not seem to fit."""
        if node.name not in self.forms:  # Reshape and the like need the shape that ONNX infers
            self._by_rule(node)
        if self.suspect and node.name not in self.misfits:
            self._by_ort(node)
        misfit = self.misfits.get(node.name)
        if self.judge and misfit is not None and not self._may_run(node):
            raise self._cannot_run(node, misfit)

    def _cannot_run(self, node: Node, misfit: str) -> ModelError:
        reads = ", ".join(f"{name!r} {self.values[name].type_text}" for name in node.inputs if name)
        hint = f"it reads {reads}" if reads else ""
        return ModelError(f"node {node.name!r} ({node.kind}) cannot run: {misfit}", hint)

    def _may_run(self, node: Node) -> bool:
        """Whether ONNX Runtime runs the node on some data, or cannot be asked."""
        fed = [self.values[name] for name in dict.fromkeys(node.inputs) if name]
        elements = sum(value.elements for value in fed)
        typed = all(value.shape is not None and value.dtype in NUMPY_NATIVE for value in fed)
        if not typed or elements > TRIAL_ELEMENTS or self._reads_computed_integers(node):
            return True
        try:
            session = node_session(node, self.graph, self.values, {})
            feeds = {v.name: self.known[v.name] if v.name in self.known else _example(v, 0) for v in fed}
            session.run(feeds, limit_s=TRIAL_S)
        except ModelError as error:
            return ran_out_of_resources(error)
        return True

    def _reads_computed_integers(self, node: Node) -> bool:
        """Whether an opaque node may fail because of the elements of its operands, which may be sizes or indices."""
        computed = (self.values[name] for name in node.inputs if name and name not in self.known)
        assert isinstance(node.op, OnnxOp)
        if (node.op.domain, node.op.op_type) in CONVERSIONS:
            return False
        return any(value.dtype.startswith(("int", "uint")) for value in computed)

    def _by_rule(self, node: Node) -> Types:
        """Types by our own formulas: ONNX's let a pool's last window start in the padding, ONNX Runtime does not."""
        form = typed_form(node, self.values, self.known, self.graph.opset.get("", 0))
        if isinstance(form, Refusal):
            self.misfits[node.name] = form.reason
        if not isinstance(form, TypedForm):
            return {}
        self.forms[node.name] = form
        return {node.output: Value(node.output, *form.result)}

    def _by_onnx(self, node: Node) -> Types:
        assert isinstance(node.op, OnnxOp)
        opset = self.graph.opset
        try:
            schema = onnx.defs.get_schema(node.op.op_type, opset.get(node.op.domain, 1), node.op.domain)
            inputs = [self.values[name] for name in dict.fromkeys(node.inputs) if name]
            found = shape_inference.infer_node_outputs(
                schema,
                opaque_proto(node, node.op, self.graph.values),
                {value.name: self._onnx_type(value) for value in inputs},
                {value.name: to_tensor(value.name, self.known[value.name]) for value in inputs if self._small(value)},
                opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in opset.items()],
            )
        except ONNX_ERRORS:
            return {}  # ONNX Runtime is asked next
        self.partial |= found
        return {name: Value(name, static_shape(proto), type_text(proto)) for name, proto in found.items()}

    def _onnx_type(self, value: Value) -> onnx.TypeProto:
        if value.shape is None and value.name in self.partial:
            return self.partial[value.name]
        return type_proto(value.dtype, value.shape)

    def _small(self, value: Value) -> bool:
        return value.name in self.known and value.elements <= SMALL_ELEMENTS

    def _by_ort(self, node: Node) -> Types:
        if not all(self.values[name].dtype for name in node.inputs if name) or self.structure.is_large(node):
            return {}
        try:
            session = node_session(node, self.graph, self.values, self.known)
        except ModelError as error:
            self.misfits.setdefault(node.name, _reason(error))
            return {}
        if session.widened:
            return {}
        return {item.name: _ort_value(item) for item in session.session.get_outputs()}

    def _by_running(self, node: Node) -> Types:
        """Types by running a node, for which no inference exists, on two inputs: equal shapes are taken as static."""
        assert isinstance(node.op, OnnxOp)
        fed = [self.values[name] for name in dict.fromkeys(node.inputs) if name and name not in self.known]
        feasible = all(value.shape is not None and value.dtype in NUMPY_NATIVE for value in fed)
        has_shape_rule = not node.op.domain and node.kind != "MaxUnpool"
        if not feasible or self.structure.is_large(node):
            return {}
        if has_shape_rule and not _is_unlike_onnx(node) and not is_counted_loop(node, self.known):
            return {}
        try:
            session = node_session(node, self.graph, self.values, self.known)
            draws = [{value.name: _example(value, seed) for value in fed} for seed in (0, 1)]
            runs = [session.run(feeds, limit_s=TRIAL_S) for feeds in draws]
        except ModelError:
            return {}
        return {
            name: Value(name, array.shape, array.dtype.name)
            for name, array in runs[0].items()
            if isinstance(array, np.ndarray) and array.shape == runs[1][name].shape
        }

    def _by_body(self, node: Node) -> Types:
        """Types of the values that a Loop carries and that keep their shape, however often it runs."""
        if node.kind != "Loop":
            return {}
        assert isinstance(node.op, OnnxOp)
        own = len(node.inputs) - capture_count(node)
        if "" in node.inputs[2:own]:
            return {}  # ONNX Runtime refuses this model
        states = [self.values[name] for name in node.inputs[2:own]]
        captured = [(self.values[name], self.known.get(name)) for name in node.inputs[own:]]
        body, opset = graph_attribute(node.op, "body"), self.graph.opset
        declared = declared_types(body)
        shapes = [value.shape for value in states]
        while any(shape is not None for shape in shapes):  # those that one iteration keeps, given that it gets them
            given = [Value("", shape, value.dtype) for shape, value in zip(shapes, states, strict=True)]
            counts = [Value("", (), "int64"), Value("", (), "bool")]
            try:
                graph = infer_graph(body_graph(body, [*counts, *given], captured, opset), declared, judge=False).graph
            except PimflowError:
                return {}
            carried = [graph.values.get(name) for name in graph.outputs[1 : 1 + len(states)]]
            if len(carried) < len(states):
                return {}  # ONNX Runtime refuses this model
            kept = [shape if new and new.shape == shape else None for shape, new in zip(shapes, carried, strict=True)]
            if kept == shapes:
                break
            shapes = kept
        results = zip(node.outputs, shapes, states, strict=False)
        return {name: Value(name, shape, value.dtype) for name, shape, value in results if shape is not None}

    def _by_declaration(self, node: Node) -> Types:
        return {name: self.declared[name] for name in node.outputs if name in self.declared}

    def finish(self) -> Graph:
        """The graph without nodes that have no outputs, and without unused constants."""
        nodes = [node for node in self.nodes if any(node.outputs)]
        used = {*self.graph.inputs, *self.graph.outputs}
        used.update(name for node in nodes for name in (*node.inputs, *node.outputs) if name)
        return self.graph.replace(
            nodes=nodes,
            values={name: value for name, value in self.values.items() if name in used},
            constants={name: array for name, array in self.constants.items() if name in used},
        )


def _check_sizes(node: str, values: Iterable[Value]) -> None:
    for value in values:
        if value.shape is not None and is_boundless(value.shape):
            made = f"node {node!r} makes" if node else "the model takes"
            size = f"shape {value.shape}" if value.elements <= MAX_ELEMENTS else f"{value.elements:.3g} elements"
            most = f"the limits are {MAX_ELEMENTS:.3g} elements and {MAX_DIMS} dims"
            raise ModelError(f"{made} {value.name!r} of {size}; {most}", "correct its sizes")


def _reason(error: ModelError) -> str:
    return _PREFIX.sub("", str(error))


def _is_unlike_onnx(node: Node) -> bool:
    """Whether the node is a pool for which ONNX's inference and ONNX Runtime's kernels disagree on shapes."""
    if not isinstance(node.op, OnnxOp) or node.op.domain or "Pool" not in node.op.op_type:
        return False
    given = dict(node.op.attributes)
    return given.get("ceil_mode") == 1 or given.get("auto_pad") in ("SAME_LOWER", "SAME_UPPER")


def _is_known(value: Value) -> bool:
    return "(" in value.dtype or (value.shape is not None and bool(value.dtype))


def _refine(types: Types, found: Mapping[str, Value]) -> None:
    for name, value in types.items():
        new = found.get(name)
        if new is not None:
            shape = value.shape if value.shape is not None else new.shape
            types[name] = Value(name, shape, value.dtype or new.dtype)


def _ort_value(item: object) -> Value:
    """The type that a session reports for one of its outputs."""
    name, kind, shape = getattr(item, "name", ""), str(getattr(item, "type", "")), getattr(item, "shape", None)
    if not kind.startswith("tensor("):
        return Value(name, None, "")
    # ONNX Runtime reports [] both for scalars and for unknown shapes
    static = isinstance(shape, Sequence) and bool(shape) and all(isinstance(dim, int) and dim >= 0 for dim in shape)
    return Value(name, tuple(shape) if static and isinstance(shape, Sequence) else None, ort_dtype(kind))


def _example(value: Value, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    shape = value.shape or ()
    if value.dtype.startswith("float"):
        return np.asarray(rng.standard_normal(shape)).astype(value.dtype)
    return np.asarray(rng.integers(0, 2, shape)).astype(value.dtype)


def declared_types(proto: onnx.GraphProto) -> dict[str, Value]:
    """The static tensor types that a model declares for its intermediate values and outputs."""
    types: Types = {}
    for info in (*proto.value_info, *proto.output):
        shape = static_shape(info.type)
        if shape is not None:
            types[info.name] = Value(info.name, shape, type_text(info.type))
    return types
