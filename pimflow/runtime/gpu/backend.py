"""The GPU as the host of a machine: every node is a kernel, a copy, or free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pimflow.codegen.answers import Roof, Way
from pimflow.codegen.host import HostBackend
from pimflow.ir import Array, Conv2d, Graph, Node, Op, Value
from pimflow.ir.analysis.content import Content, content_arrays, content_of
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.records import dataclass
from pimflow.runtime.gpu.convolutions import Lowered, Sizes, lowered
from pimflow.runtime.gpu.cost import GpuCost, gpu_cost, movement_cost, scaled, sequence_cost, static_energy_mj
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.runtime.gpu.sparse_work import exporter_pattern
from pimflow.runtime.gpu.window_order import convolve
from pimflow.runtime.gpu.work import KernelSequence, element_width
from pimflow.sparse import Graph as Edges
from pimflow.targets import Gpu

_Type = tuple[tuple[int, ...] | None, str]  # a tensor's shape and element type


@dataclass(frozen=True)
class _Kernel:
    """What a GPU cost depends on: op, operands' shapes and types, the content of those that the op says; no names."""

    op: Op
    inputs: tuple[_Type | None, ...]
    outputs: tuple[_Type | None, ...]
    content: Content


def _type(value: Value | None) -> _Type | None:
    return None if value is None else (value.shape, value.dtype)


@dataclass(frozen=True)
class _Price:
    """What a node costs, of a convolution the way it is run in, where that is not the library's own, and what the ways
    take that there are, the library's first, if there are several."""

    cost: GpuCost
    way: Lowered | None = None
    ways: tuple[Way, ...] = ()

    @property
    def name(self) -> str:
        """Of the way."""
        return "library" if self.way is None else self.way.algorithm


class GpuHost(HostBackend):
    """A GPU with `channels` memory channels of its own; prices are remembered by what they depend on.

    Args:
        device: its name in the target.
        spec: what the target says of it.
        measured: times that replace the model's, kernel by kernel, where it has them.
        channels: memory channels that serve it; all of them by default.
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

    @property
    def identity(self) -> str:
        """Its memory channels, and the measured table."""
        return f"{self.channels} {'' if self.measured is None else self.measured.digest}"

    @property
    def asymmetric_padding(self) -> bool:
        """As the target says of its library."""
        return self.gpu.asymmetric_padding

    @property
    def queues_launches(self) -> bool:
        """As the target says."""
        return self.gpu.launches == "queued"

    @property
    def persistent_stages(self) -> bool:
        """As the target says."""
        return self.gpu.persistent_stages

    @property
    def element_bytes(self) -> int:
        """Of its operands."""
        return self.gpu.element_bytes

    @property
    def roof(self) -> Roof:
        """All SMs at the clock, and the memory channels that serve it."""
        macs = self.gpu.sms * self.gpu.peak_macs_per_sm_cycle * self.gpu.clock_mhz
        return Roof(macs, self.channels * self.gpu.channel_gb_per_s * 1e3)

    def left_with(self, taken: int) -> GpuHost:
        """The GPU beside units that hold `taken` of its memory channels."""
        return GpuHost(self.device, self.gpu, self.measured, self.channels - taken) if taken else self

    def cost(self, graph: Graph, node: Node) -> GpuCost:
        """A kernel's cost, by the model or as measured; of a convolution by the fastest way there is."""
        return self._priced(graph, node).cost

    def algorithm(self, graph: Graph, node: Node) -> str:
        """Of a convolution, where it is not run as the library does."""
        way = self._priced(graph, node).way
        return "" if way is None else way.algorithm

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """Of a convolution, the library's and those that the target offers."""
        return self._priced(graph, node).ways

    def execute(self, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """Of a convolution, from the tensor that it is made of."""
        way = self._priced(graph, node).way
        if way is None or not isinstance(node.op, Conv2d):
            return super().execute(graph, node, inputs)
        return convolve(node.op, inputs, way.algorithm)

    def workspace_elements(self, graph: Graph, node: Node) -> int:
        """The tensor that a convolution is made of, so many images at a time as fit."""
        way = self._priced(graph, node).way
        return 0 if way is None else way.workspace

    def _priced(self, graph: Graph, node: Node) -> _Price:
        content = content_of(graph, node)
        key = _Kernel(
            node.op, tuple(map(_type, graph.in_values(node))), tuple(map(_type, graph.out_values(node))), content
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._fastest(graph, node, self._price(graph, node, content))
        return known

    def _fastest(self, graph: Graph, node: Node, library: GpuCost) -> _Price:
        """By the library, or in another way that the target offers."""
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
        """What the model cannot see from shapes; what is measured leaves nothing out."""
        return self.cost(graph, node).unknown

    def measured_us(self, op: Op) -> float:
        """By its table, if there is one."""
        return math.inf if self.measured is None else self.measured.least_us(op)

    def copy_cost(self, moved_bytes: int, dtype: str) -> GpuCost:
        """A copy kernel over the bytes, at the width that the GPU stores floating-point elements in."""
        width = element_width(dtype, self.gpu.element_bytes)
        return movement_cost(moved_bytes * width // (element_bytes(dtype) or 1), self.gpu, self.channels)

    def cost_as_exported(self, edges: Edges, width: int, weighted: bool) -> GpuCost:
        """Gather, product, Expand and ScatterElements, each by its bytes."""
        return sequence_cost(exporter_pattern(edges, width, self.gpu.element_bytes, weighted), self.gpu, self.channels)

    def static_energy_mj(self, time_us: float) -> float:
        """The whole board's, PIM channels apart."""
        return static_energy_mj(time_us, self.gpu)

    def _price(self, graph: Graph, node: Node, content: Content) -> GpuCost:
        """The model's cost, or the measured time where the table has this kernel.

        A table is measured on a whole board. With fewer channels its time is scaled by the model's own ratio.
        """
        inputs, outputs, constants = graph.in_values(node), graph.out_values(node), content_arrays(graph, node)
        cost = gpu_cost(node.op, inputs, outputs, self.gpu, self.channels, constants=constants, opset=graph.opset)
        time_us = self.measured.time_us(node.op, inputs, content) if self.measured is not None else None
        if time_us is None or cost.time_us == 0:
            return cost
        every = self.gpu.memory_channels
        whole = gpu_cost(node.op, inputs, outputs, self.gpu, every, constants=constants, opset=graph.opset)
        return replace(scaled(cost, time_us * cost.time_us / whole.time_us), unknown="")
