"""The CPU's prices against their closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.ir import Builder
from pimflow.runtime.cpu.cost import CpuKernel, CpuWork, cpu_cost, cpu_work
from pimflow.targets import CpuSpec, load_target

CPU = load_target("pimflow-cpu").units["cpu"]
assert isinstance(CPU, CpuSpec)
XEON: CpuSpec = CPU


def test_a_kernel_takes_its_call_and_its_binding_limit() -> None:
    product = cpu_cost(CpuWork("MatMul", (CpuKernel(10**9, 0, 10**6),)), XEON)
    assert product.compute_us == pytest.approx(1e9 / (8 * 2500 * 16 * 0.8))
    assert (product.memory_us, product.call_us) == (0, 5)
    stream = cpu_cost(CpuWork("Add", (CpuKernel(0, 10**6, 12 * 10**6, times=3),)), XEON)
    assert stream.memory_us == pytest.approx(3 * 12e6 / (115.2e3 * 0.2))
    assert (stream.compute_us, stream.call_us, stream.bytes, stream.counters) == (0, 15, 36 * 10**6, {"CALL": 3})
    assert stream.time_us == pytest.approx(sum(stream.time_parts_us.values()))
    assert stream.energy_mj == pytest.approx(stream.memory_us * 60e-3 + 3e6 * 20e-9 + 36e6 * 120e-9)


def test_rows_that_are_read_by_index_wait_for_memory() -> None:
    """8 cores x 10 lines of 64 bytes in 90 ns."""
    slow = replace(XEON, memory_efficiency=1.0)
    kernel = CpuKernel(0, 0, 10**8, scattered_bytes=10**8)
    assert cpu_cost(CpuWork("Spmm", (kernel,)), slow).memory_us == pytest.approx(1e8 / (8 * 10 * 64 / 0.09))
    assert cpu_cost(CpuWork("Spmm", (kernel,)), XEON).memory_us == pytest.approx(1e8 / 23040)


def test_the_work_of_a_node_is_read_in_single_precision() -> None:
    build = Builder()
    x = build.input(64, 32)
    product = build.matmul(x, 16, name="product")
    graph = build.graph(build.onnx("Gemm2", product, name="odd", domain="mine"))
    work = cpu_work(graph, graph.node("product"), XEON)
    assert work == CpuWork("MatMul", (CpuKernel(64 * 32 * 16, 0, 4 * (64 * 32 + 32 * 16 + 64 * 16)),))
    odd = cpu_work(graph, graph.node("odd"), XEON)
    assert odd is not None
    assert "not" in odd.unknown
