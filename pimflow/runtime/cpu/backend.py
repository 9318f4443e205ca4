"""A CPU as the host of a machine, and as a unit next to another host."""

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
    """A CPU that runs every node. Prices are computed from the node's work."""

    title = "CPU"

    def __init__(self, device: str, spec: CpuSpec, measured: object = None) -> None:
        super().__init__(device, spec)
        self.cpu = spec

    @property
    def element_bytes(self) -> int:
        """Bytes of a single-precision element."""
        return ELEMENT_BYTES

    @property
    def roof(self) -> Roof:
        """All cores' vector units, and all memory channels."""
        return _roof(self.cpu)

    def without_channels(self, taken: int) -> CpuHost:
        """The same CPU: units have their own memory."""
        return self

    def cost(self, graph: Graph, node: Node) -> CpuCost:
        """The cost of the node's kernels; zero if nothing runs."""
        return cpu_cost(cpu_work(graph, node, self.cpu) or CpuWork(node.kind, ()), self.cpu)

    def unknown(self, graph: Graph, node: Node) -> str:
        """What cannot be derived from shapes."""
        return self.cost(graph, node).unknown

    def copy_cost(self, moved_bytes: int, dtype: str) -> CpuCost:
        """The cost of a copy, with the width in which the CPU stores elements."""
        moved = moved_bytes * element_width(dtype, ELEMENT_BYTES) // (element_bytes(dtype) or 1)
        return cpu_cost(CpuWork("copy", (CpuKernel(0, 0, moved),)), self.cpu)

    def static_energy_mj(self, time_us: float) -> float:
        """The static energy of the CPU and its board."""
        return self.cpu.energy.static_w * time_us * 1e-3


class CpuBackend(Backend[CpuWork, CpuWork]):
    """A CPU next to another host. It executes ONNX Runtime's kernels; its programs are the work that is priced."""

    title = "CPU"
    counters: ClassVar[tuple[str, ...]] = ("CALL",)

    def __init__(self, device: str, spec: CpuSpec) -> None:
        super().__init__(device, spec)
        self.cpu = spec
        self._kernels: WeakKeyDictionary[Graph, NodeKernels] = WeakKeyDictionary()

    @property
    def readout_functions(self) -> Functions:
        """Any function of one element: a loop applies it to the value just computed."""
        return "any"

    @property
    def roof(self) -> Roof:
        """The same as for a host."""
        return _roof(self.cpu)

    def work(self, graph: Graph, node: Node) -> CpuWork | Refusal:
        """The work of a node that computes one value at a known cost."""
        if node.op.is_movement:
            return Refusal(f"{node.kind} only moves data")
        if len([name for name in node.outputs if name]) != 1:
            return Refusal(f"{node.kind} has {len(node.outputs)} results")
        work = cpu_work(graph, node, self.cpu)
        if work is None:
            return Refusal(f"{node.kind} is a view: there is nothing to run")
        return Refusal(work.unknown) if work.unknown else work

    def cost(self, work: CpuWork, choice: str) -> CpuCost:
        """The cost, bound by arithmetic or memory."""
        return cpu_cost(work, self.cpu)

    def time_parts_us(self, work: CpuWork, choice: str) -> Parts:
        """Calls, compute-bound kernels and memory-bound kernels."""
        return cpu_cost(work, self.cpu).time_parts_us

    def program(self, work: CpuWork, choice: str) -> CpuWork:
        """The work itself, which lists the kernels."""
        return work

    def execute(
        self, program: CpuWork, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        """The node's value, computed by ONNX Runtime's kernel."""
        if graph not in self._kernels:
            self._kernels[graph] = NodeKernels(graph)
        (result,) = self._kernels[graph].run(node, inputs)
        return result

    def encode(self, program: CpuWork) -> Any:
        """The fields of a program."""
        return encode(program)

    def decode(self, data: Any) -> CpuWork:
        """A program from its fields."""
        return decode(CpuWork, data)

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """Copies over the link, four bytes per element; None if there is no link."""
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
