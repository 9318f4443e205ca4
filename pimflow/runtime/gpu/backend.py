"""The GPU as the host of a machine: every node is a kernel, a copy, or free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from pimflow.codegen.answers import Roof, Way
from pimflow.codegen.host import HostBackend
from pimflow.ir import Array, Conv2d, Graph, Node, Op, Value
from pimflow.ir.analysis.content import Content, content_arrays, content_of
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.gpu.convolutions import Lowered, Sizes, lowered
from pimflow.runtime.gpu.cost import GpuCost, gpu_cost, movement_cost, scaled, sequence_cost, static_energy_mj
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.runtime.gpu.sparse_work import exporter_pattern
from pimflow.runtime.gpu.window_order import convolve
from pimflow.runtime.gpu.work import KernelSequence, element_width
from pimflow.sparse import Graph as Edges
from pimflow.targets import Gpu

_Names = tuple[str, ...]
_Type = tuple[tuple[int, ...] | None, str]  # a tensor's shape and element type

_MANY_OPERANDS = 32
"""From so many operands on, a node's price is also found by its graph and name: the key has the types of all operands,
and a node is priced some ten times."""


class _Kernel(NamedTuple):
    """What a GPU cost depends on: op, operand shapes and types, and the content of the operands that the op names."""

    op: Op
    inputs: tuple[_Type | None, ...]
    outputs: tuple[_Type | None, ...]
    content: Content


def _type(value: Value | None) -> _Type | None:
    return None if value is None else (value.shape, value.dtype)


@dataclass(frozen=True, slots=True)
class _Price:
    """The cost of a node. For a convolution also the algorithm, if it is not the library's, and all ways to run it with
    their times, the library's first, if there are several."""

    cost: GpuCost
    way: Lowered | None = None
    ways: tuple[Way, ...] = ()

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "library" if self.way is None else self.way.algorithm


class GpuHost(HostBackend):
    """A GPU with `channels` memory channels; prices are cached by everything they depend on.

    Args:
        device: its name in the target.
        spec: its table in the target.
        measured: times that replace those of the model for the kernels it contains.
        channels: memory channels that serve it; by default all.
    """

    title = "GPU stream"

    def __init__(
        self, device: str, spec: Gpu, measured: MeasuredTable | None = None, channels: int | None = None
    ) -> None:
        super().__init__(device, spec)
        self.gpu = spec
        self.measured = measured
        self.channels = spec.memory_channels if channels is None else channels
        self._known: dict[_Kernel, _Price] = {}
        self._of_graph: WeakKeyDictionary[Graph, dict[tuple[str, Op], tuple[_Names, _Price]]] = WeakKeyDictionary()

    @property
    def identity(self) -> str:
        """The number of memory channels, and the digest of the measured table."""
        return f"{self.channels} {'' if self.measured is None else self.measured.digest}"

    @property
    def asymmetric_padding(self) -> bool:
        """As in the target, for its library."""
        return self.gpu.asymmetric_padding

    @property
    def queues_launches(self) -> bool:
        """As in the target."""
        return self.gpu.launches == "queued"

    @property
    def persistent_stages(self) -> bool:
        """As in the target."""
        return self.gpu.persistent_stages

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand element."""
        return self.gpu.element_bytes

    @property
    def roof(self) -> Roof:
        """All SMs at the clock, and the memory channels that serve it."""
        macs = self.gpu.sms * self.gpu.peak_macs_per_sm_cycle * self.gpu.clock_mhz
        return Roof(macs, self.channels * self.gpu.channel_gb_per_s * 1e3)

    def without_channels(self, taken: int) -> GpuHost:
        """The GPU without `taken` of its memory channels, which units hold."""
        return GpuHost(self.device, self.gpu, self.measured, self.channels - taken) if taken else self

    def cost(self, graph: Graph, node: Node) -> GpuCost:
        """A kernel's cost, modelled or measured; for a convolution that of the fastest algorithm."""
        return self._priced(graph, node).cost

    def algorithm(self, graph: Graph, node: Node) -> str:
        """The algorithm of a convolution if it is not the library's, else ""."""
        way = self._priced(graph, node).way
        return "" if way is None else way.algorithm

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """For a convolution, the library's way and those that the target offers."""
        return self._priced(graph, node).ways

    def execute(self, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """A convolution computed by its algorithm."""
        way = self._priced(graph, node).way
        if way is None or not isinstance(node.op, Conv2d):
            return super().execute(graph, node, inputs)
        return convolve(node.op, inputs, way.algorithm)

    def workspace_elements(self, graph: Graph, node: Node) -> int:
        """Elements of the tensor from which a convolution is computed, for as many images at a time as fit."""
        way = self._priced(graph, node).way
        return 0 if way is None else way.workspace

    def _priced(self, graph: Graph, node: Node) -> _Price:
        if len(node.inputs) < _MANY_OPERANDS:
            return self._found(graph, node)
        known, key = self._of_graph.setdefault(graph, {}), (node.name, node.op)
        inputs, price = known.get(key) or (None, None)
        if price is None or inputs is not node.inputs:  # another placement shares them
            price = self._found(graph, node)
            known[key] = node.inputs, price
        return price

    def _found(self, graph: Graph, node: Node) -> _Price:
        """The price of a node, computed if no node with the same key has been priced."""
        content = content_of(graph, node)
        key = _Kernel(
            node.op, tuple(map(_type, graph.in_values(node))), tuple(map(_type, graph.out_values(node))), content
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._fastest(graph, node, self._price(graph, node, content))
        return known

    def _fastest(self, graph: Graph, node: Node, library: GpuCost) -> _Price:
        """The cheapest of the library's cost and the other algorithms that the target offers."""
        offered, op = self.gpu.convolutions, node.op
        sizes = None
        if offered is not None and isinstance(op, Conv2d):
            sizes = Sizes.of(op, graph.in_values(node), graph.value(node.output))
        if offered is None or sizes is None:
            return _Price(library)
        prices = [
            _Price(sequence_cost(KernelSequence(way.kernels), self.gpu, self.channels), way)
            for way in lowered(sizes, offered, self.gpu.element_bytes)
        ]
        if not prices:
            return _Price(library)
        every = [_Price(library), *prices]
        taken = min(every if "library" in offered.algorithms else prices, key=lambda price: price.cost.time_us)
        return replace(taken, ways=tuple(Way(price.name, price.cost.time_us, price is taken) for price in every))

    def unknown(self, graph: Graph, node: Node) -> str:
        """What the model cannot derive from shapes; nothing for measured kernels."""
        return self.cost(graph, node).unknown

    def measured_us(self, op: Op) -> float:
        """The shortest time in its table, if there is one."""
        return math.inf if self.measured is None else self.measured.shortest_us(op)

    def copy_cost(self, moved_bytes: int, dtype: str) -> GpuCost:
        """The cost of a copy kernel, with the width in which the GPU stores floating-point elements."""
        width = element_width(dtype, self.gpu.element_bytes)
        return movement_cost(moved_bytes * width // (element_bytes(dtype) or 1), self.gpu, self.channels)

    def cost_as_exported(self, edges: Edges, width: int, weighted: bool) -> GpuCost:
        """The cost of Gather, product, Expand and ScatterElements, each according to its bytes."""
        return sequence_cost(exporter_pattern(edges, width, self.gpu.element_bytes, weighted), self.gpu, self.channels)

    def static_energy_mj(self, time_us: float) -> float:
        """The static energy of the whole board, without the PIM channels."""
        return static_energy_mj(time_us, self.gpu)

    def _price(self, graph: Graph, node: Node, content: Content) -> GpuCost:
        """The model's cost, or the measured time if the table has this kernel.

        Tables are measured on a whole board. With fewer channels, a time is scaled by the model's own ratio.
        """
        inputs, outputs, constants = graph.in_values(node), graph.out_values(node), content_arrays(graph, node)
        cost = gpu_cost(node.op, inputs, outputs, self.gpu, self.channels, constants=constants, opset=graph.opset)
        time_us = self.measured.time_us(node.op, inputs, content) if self.measured is not None else None
        if time_us is None or cost.time_us == 0:
            return cost
        every = self.gpu.memory_channels
        whole = gpu_cost(node.op, inputs, outputs, self.gpu, every, constants=constants, opset=graph.opset)
        return replace(scaled(cost, time_us * cost.time_us / whole.time_us), unknown="")
