"""The buffers that the kernels of a step access."""

from __future__ import annotations

from pimflow.api.training_steps import OPTIMISE
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.run import keep_all
from pimflow.runtime.offload.trace import Trace, trace_of
from pimflow.targets import load_target

ROWS, COLUMNS = 64, 32
SIZE = 4 * ROWS * COLUMNS


def traced(graph: Graph) -> Trace:
    made = OPTIMISE.run(graph).graph
    return trace_of(made, [node.name for node in made.nodes], CostModel(load_target("a100-ssd")))


def names(trace: Trace, buffers: tuple[int, ...]) -> list[str]:
    return [trace.buffers[buffer].name for buffer in buffers]


def test_what_stays_inside_a_kernel_has_no_buffer() -> None:
    build = Builder()
    x = build.input(ROWS, COLUMNS)
    root = build.tanh(x, name="root")
    gate = build.sigmoid(root, name="gate")
    product = build.mul(root, build.relu(gate, name="more"), name="product")
    trace = traced(build.graph(build.matmul(product, 8)))
    kernels = {kernel.name: kernel for kernel in trace.kernels}
    assert names(trace, kernels["root"].reads) == [x]
    assert len(kernels["root"].writes) == 1
    assert kernels["root"].writes == kernels["matmul4"].reads
    assert all(kernels[name].reads == kernels[name].writes == () for name in ("gate", "more", "product"))
    assert keep_all(trace).run.peak_bytes == SIZE


def test_a_value_that_leaves_its_kernel_has_a_buffer() -> None:
    build = Builder()
    root = build.tanh(build.input(ROWS, COLUMNS), name="root")
    product = build.mul(root, build.sigmoid(root), name="product")
    trace = traced(build.graph(build.matmul(product, 8), build.matmul(root, 8)))
    assert keep_all(trace).run.peak_bytes == 2 * SIZE


def test_a_kernel_waits_for_a_second_tensor() -> None:
    """Each node then accesses its own values: what is added is made after the kernel's first node."""
    build = Builder()
    x = build.relu(build.input(ROWS, COLUMNS), name="x")
    first = build.matmul(x, COLUMNS, name="first")
    second = build.matmul(x, COLUMNS, name="second")
    added = build.add(first, second, name="added")
    trace = traced(build.graph(build.matmul(added, 8)))
    kernels = {kernel.name: kernel for kernel in trace.kernels}
    assert set(kernels["added"].reads) == {*kernels["first"].writes, *kernels["second"].writes}
    assert kernels["second"].writes[0] not in kernels["first"].reads


def test_the_gradient_of_a_gelu_needs_one_result_besides_its_operands() -> None:
    build = Builder(opset=20)
    up = build.matmul(build.input(ROWS, COLUMNS), COLUMNS, name="up")
    step = training_step(build.graph(build.matmul(build.elementwise("Gelu", up), COLUMNS)), Differentiate())
    trace = trace_of(OPTIMISE.run(step.graph).graph, step.forward, CostModel(load_target("a100-ssd")))
    kernels = [kernel for kernel in trace.kernels if kernel.name.startswith("gelu") and "gradient" in kernel.name]
    assert sum(bool(kernel.writes) for kernel in kernels) == 2, "the derivative, and its product"
    assert keep_all(trace).run.peak_bytes == 3 * SIZE
