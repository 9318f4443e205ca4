"""Runs a compiled graph inside one arena of bytes, at the offsets that the memory planner assigned.

Free movements do nothing: their outputs are numpy views at the planned places. A kernel reads its operands from their
places and writes its result to its own place. In between it stages them in ONNX Runtime's layout (dense NCHW), as a GPU
kernel stages tiles in shared memory. The staging belongs to the kernel, not to the arena, and ends with it.

Unused memory is poisoned (all ones: NaN in every float type) when the run starts and when a region begins or ends. So a
plan that lets live values overlap, ends a lifetime too early, misplaces a view or forgets to fill padding does not
produce the model's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pimflow.errors import GraphError
from pimflow.ir import Array, Concat, Graph, Node
from pimflow.records import dataclass
from pimflow.runtime.execute.ort import NodeKernels, check_inputs, operands
from pimflow.runtime.memory import ArenaRegion, MemoryPlan, ValuePlace
from pimflow.runtime.timeline import regions

POISON = 0xFF


class Kernels(Protocol):
    """Executes one node by value."""

    def run(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results, one for each named output; `inputs` are dense, None for absent ones."""


class UnitExecute(Protocol):
    """Executes nodes that run on units, by value."""

    def runs(self, node: Node) -> bool:
        """Whether the executor runs this node."""

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results from its dense operands."""


class ShapeMismatch(GraphError):
    """A value does not have its shape in the graph: `name` is the value, `planned` the shape in the graph."""

    def __init__(self, name: str, actual: tuple[int, ...], planned: tuple[int, ...]) -> None:
        super().__init__(f"value {name!r} has shape {actual}, but {planned} in the graph")
        self.name, self.actual, self.planned = name, actual, planned


@dataclass(frozen=True)
class ArenaStats:
    """Statistics of a run: kernels executed, movements that cost nothing, bytes that other movements read and wrote."""

    arena_bytes: int
    kernels: int
    unit_kernels: int
    free_movements: int
    moved_bytes: int


@dataclass(frozen=True)
class ArenaRun:
    """The graph's outputs (dense copies) and the statistics of the run."""

    outputs: dict[str, Array]
    stats: ArenaStats


def run_in_arena(
    graph: Graph,
    plan: MemoryPlan,
    inputs: Mapping[str, Array],
    *,
    kernels: Kernels | None = None,
    unit_execute: UnitExecute | None = None,
) -> ArenaRun:
    """Executes a graph in the arena of its plan.

    Values without a place in the plan (no static shape) live outside the arena.

    Args:
        graph: the graph that the plan was made for.
        plan: where values are placed.
        inputs: arrays by the names of the graph's inputs.
        kernels: executes nodes; by default ONNX Runtime, one node at a time.
        unit_execute: executes nodes that run on units; by default `kernels` does.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    check_inputs(graph, inputs)
    return ArenaInference(graph, plan, kernels or NodeKernels(graph), unit_execute).execute(inputs)


def new_arena(size: int) -> Array:
    """Poisoned memory."""
    return np.full(max(1, size), POISON, np.uint8)


class ArenaInference:
    """One inference: the arena's bytes, and the values outside the arena.

    Args:
        memory: the arena's bytes, if other inferences share them.
    """

    def __init__(
        self,
        graph: Graph,
        plan: MemoryPlan,
        kernels: Kernels,
        unit_execute: UnitExecute | None,
        memory: Array | None = None,
    ) -> None:
        self.graph = graph
        self.plan = plan
        self.kernels = kernels
        self.unit_execute = unit_execute
        self.memory = new_arena(plan.arena_bytes) if memory is None else memory
        self.outside: dict[str, Array] = {}
        self.executed = self.on_units = self.free = self.moved = 0
        self._begin: dict[int, list[ArenaRegion]] = {}
        self._end: dict[int, list[ArenaRegion]] = {}
        for region in plan.regions:
            self._begin.setdefault(region.first, []).append(region)
            self._end.setdefault(region.last, []).append(region)

    def execute(self, inputs: Mapping[str, Array]) -> ArenaRun:
        """Runs all steps."""
        order = regions(self.graph)
        self.begin(self._begin.get(0, ()))
        self.write_inputs(inputs)
        for step, nodes in enumerate(order):
            if step:
                self.begin(self._begin.get(step, ()))
            for node in nodes:
                self.execute_node(node)
            if step < len(order) - 1:
                self.end(self._end.get(step, ()))
        stats = ArenaStats(self.plan.arena_bytes, self.executed, self.on_units, self.free, self.moved)
        return ArenaRun(self.outputs(), stats)

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Writes the inputs to their places."""
        for name, item in operands(self.graph, inputs).items():
            self._write(name, item)

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs."""
        return {name: _copied(self._read(name)) for name in self.graph.outputs}

    def begin(self, pieces: Sequence[ArenaRegion]) -> None:
        """Starts the lifetime of regions: poisons them and fills their padding."""
        self.end(pieces)
        for region in pieces:
            if region.filled:
                whole = self._region_view(region)
                for box in region.filled:
                    cells = tuple(slice(low, low + dim) for low, dim in zip(box.origin, box.shape, strict=True))
                    whole[cells] = np.asarray(box.value).astype(whole.dtype)

    def end(self, pieces: Sequence[ArenaRegion]) -> None:
        """Ends the lifetime of regions: poisons them."""
        for region in pieces:
            self.memory[region.offset : region.offset + region.bytes] = POISON

    def _region_view(self, region: ArenaRegion) -> Array:
        dtype = np.dtype(region.dtype)
        strides = tuple(step * dtype.itemsize for step in region.strides)
        view: Array = np.ndarray(region.shape, dtype, self.memory, region.offset, strides)
        return view

    def _view(self, spot: ValuePlace) -> Array:
        view: Array = np.ndarray(spot.shape, np.dtype(spot.dtype), self.memory, spot.offset, spot.strides)
        return view

    def _read(self, name: str) -> Array:
        """A value in its place, or composed from the values that hold its parts."""
        constant = self.graph.constants.get(name)
        if constant is not None:
            return constant
        if name in self.plan.composed:
            return self._composed(name)
        spot = self.plan.places.get(name)
        return self.outside[name] if spot is None else self._view(spot)

    def _composed(self, name: str) -> Array:
        """A value that only copies read, computed for each read."""
        node = self.graph.producer(name)
        assert node is not None
        results = self.kernels.run(node, [_dense(self._read(read)) if read else None for read in node.inputs])
        return dict(zip((made for made in node.outputs if made), results, strict=True))[name]

    def _write(self, name: str, array: Array) -> None:
        spot = self.plan.places.get(name)
        if spot is None:
            self.outside[name] = array
            return
        if np.shape(array) != spot.shape:
            raise ShapeMismatch(name, np.shape(array), spot.shape)
        self._view(spot)[...] = array

    def execute_node(self, node: Node) -> None:
        """Executes a node on the contents of its operands' places."""
        movement = self.plan.movements.get(node.name)
        if movement is None:
            self._run_kernel(node)
            return
        self.moved += movement.bytes
        if movement.free:
            self.free += 1
        elif movement.copied:
            self._copy_operands(node, movement.copied)
        else:
            self._run_kernel(node)

    def _copy_operands(self, node: Node, copied: Sequence[int]) -> None:
        """Copies the operands of a Concat that are not written in place."""
        out = self._read(node.output)
        assert isinstance(node.op, Concat)
        axis, position = node.op.axis, 0
        for index, name in enumerate(node.inputs):
            extent = self.graph.shape(name)[axis]
            if index in copied:
                cells = (slice(None),) * axis + (slice(position, position + extent),)
                out[cells] = self._read(name)
            position += extent

    def _run_kernel(self, node: Node) -> None:
        staged = [_dense(self._read(name)) if name else None for name in node.inputs]
        if self.unit_execute is not None and self.unit_execute.runs(node):
            results = self.unit_execute(node, staged)
            self.on_units += 1
        else:
            results = self.kernels.run(node, staged)
            self.executed += 1
        for name, result in zip((name for name in node.outputs if name), results, strict=True):
            self._write(name, result)


def _copied(item: Any) -> Any:
    return item.copy(order="C") if isinstance(item, np.ndarray) else item


def _dense(value: Any) -> Any:
    """An array in ONNX Runtime's layout; values that are not arrays (sequences) are returned unchanged."""
    return value if not isinstance(value, np.ndarray) or value.flags.c_contiguous else value.copy(order="C")
