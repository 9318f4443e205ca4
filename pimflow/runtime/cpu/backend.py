"""A CPU as the host of a machine, and as a unit beside another host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pimflow.codegen.answers import Parts, Roof, Transfer
from pimflow.codegen.backend import Backend
from pimflow.codegen.host import HostBackend
from pimflow.data import decode, encode
from pimflow.ir import Array, Graph, Node, Refusal
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.ir.readout import Functions
from pimflow.runtime.cpu.cost import ELEMENT_BYTES, CpuCost, CpuKernel, CpuWork, cpu_cost, cpu_work
from pimflow.runtime.execute.ort import NodeKernels
from pimflow.runtime.gpu.work import element_width
from pimflow.targets import CpuSpec


class CpuHost(HostBackend):
    """A CPU that runs every node. Prices are remembered by the node's work."""

    title = "CPU"

    def __init__(self, device: str, spec: CpuSpec, measured: object = None) -> None:
        super().__init__(device, spec)
        self.cpu = spec

    @property
    def element_bytes(self) -> int:
        """Single precision."""
        return ELEMENT_BYTES

    @property
    def roof(self) -> Roof:
        """All cores' vector units, and all memory channels."""
        return _roof(self.cpu)

    def left_with(self, taken: int) -> CpuHost:
        """The same CPU: others have memory of their own."""
        return self

    def cost(self, graph: Graph, node: Node) -> CpuCost:
        """Its kernels' cost; nothing where nothing runs."""
        return cpu_cost(cpu_work(graph, node, self.cpu) or CpuWork(node.kind, ()), self.cpu)

    def unknown(self, graph: Graph, node: Node) -> str:
        """What cannot be seen from shapes."""
        return self.cost(graph, node).unknown

    def copy_cost(self, moved_bytes: int, dtype: str) -> CpuCost:
        """A copy, at the width that the CPU stores elements in."""
        moved = moved_bytes * element_width(dtype, ELEMENT_BYTES) // (element_bytes(dtype) or 1)
        return cpu_cost(CpuWork("copy", (CpuKernel(0, 0, moved),)), self.cpu)

    def static_energy_mj(self, time_us: float) -> float:
        """Of the CPU and its board."""
        return self.cpu.energy.static_w * time_us * 1e-3


class CpuBackend(Backend[CpuWork, CpuWork]):
    """A CPU beside another host; what it executes are ONNX Runtime's kernels, and its programs say what they cost."""

    title = "CPU"
    counters: ClassVar[tuple[str, ...]] = ("CALL",)

    def __init__(self, device: str, spec: CpuSpec) -> None:
        super().__init__(device, spec)
        self.cpu = spec
        self._kernels: WeakKeyDictionary[Graph, NodeKernels] = WeakKeyDictionary()

    @property
    def readout_functions(self) -> Functions:
        """Whatever function of one element: a loop applies it to what it has just computed."""
        return "any"

    @property
    def roof(self) -> Roof:
        """As where it is the host."""
        return _roof(self.cpu)

    def work(self, graph: Graph, node: Node) -> CpuWork | Refusal:
        """Whatever makes one value at a cost that is known."""
        if node.op.is_movement:
            return Refusal(f"{node.kind} moves data, and computes nothing")
        if len([name for name in node.outputs if name]) != 1:
            return Refusal(f"{node.kind} makes {len(node.outputs)} values")
        work = cpu_work(graph, node, self.cpu)
        if work is None:
            return Refusal(f"{node.kind} runs nowhere: it is a view")
        return Refusal(work.unknown) if work.unknown else work

    def cost(self, work: CpuWork, choice: str) -> CpuCost:
        """By arithmetic or memory."""
        return cpu_cost(work, self.cpu)

    def time_parts_us(self, work: CpuWork, choice: str) -> Parts:
        """Calls, and what bounds the kernels."""
        return cpu_cost(work, self.cpu).time_parts_us

    def program(self, work: CpuWork, choice: str) -> CpuWork:
        """The kernels."""
        return work

    def execute(
        self, program: CpuWork, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        """The node's value by ONNX Runtime's kernel for it."""
        if graph not in self._kernels:
            self._kernels[graph] = NodeKernels(graph)
        (result,) = self._kernels[graph].run(node, inputs)
        return result

    def encode(self, program: CpuWork) -> Any:
        """Its fields."""
        return encode(program)

    def decode(self, data: Any) -> CpuWork:
        """From its fields."""
        return decode(CpuWork, data)

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """Copies over the link, four bytes an element; None where there is none."""
        if self.cpu.link_gb_per_s is None:
            return None
        moved = (ELEMENT_BYTES * loaded, partial_bytes or ELEMENT_BYTES * stored)
        load_us, store_us = map(self._copy_us, moved)
        load_mj, store_mj = (size * self.cpu.energy.link_pj_per_byte * 1e-9 for size in moved)
        return Transfer(load_us, store_us, load_mj, store_mj, "link")

    def _copy_us(self, moved_bytes: int) -> float:
        assert self.cpu.link_gb_per_s is not None
        return self.cpu.link_us + moved_bytes / (self.cpu.link_gb_per_s * 1e3) if moved_bytes else 0.0


def _roof(cpu: CpuSpec) -> Roof:
    return Roof(cpu.cores * cpu.macs_per_core_cycle * cpu.clock_mhz, cpu.memory_gb_per_s * 1e3)
