"""Convolution algorithms: the temporary memory and cost of each, within the workspace; the fastest is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pimflow
from pimflow.errors import TargetError
from pimflow.ir import Builder, Conv2d, Graph
from pimflow.report.ways import DeviceWay
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.gpu.convolutions import MIB, Lowered, Sizes, lowered
from pimflow.runtime.gpu.cost import sequence_cost
from pimflow.runtime.gpu.window_order import convolve
from pimflow.runtime.gpu.work import DepthwiseWork, KernelSequence, MatrixWork, StreamWork
from pimflow.targets import Gpu, load_target
from pimflow.targets.overrides import with_convolutions
from pimflow.targets.schema.gpu import ALGORITHMS, Algorithm, ConvolutionChoice
from support.cli import Capture, document, run

OP = Conv2d((3, 3), (2, 2), (1, 1, 1, 1))
SIZES = Sizes(OP, (5, 8, 20, 12), (5, 16, 10, 6), more=16)
ALL = ConvolutionChoice(ALGORITHMS, 1024.0)


def ways(sizes: Sizes, choice: ConvolutionChoice = ALL, element_bytes: int = 4) -> dict[Algorithm, Lowered]:
    return {way.algorithm: way for way in lowered(sizes, choice, element_bytes)}


def test_sizes_of_the_temporary_tensors() -> None:
    found = ways(SIZES)
    assert found["im2col"].workspace == 5 * 8 * 3 * 3 * 10 * 6
    assert found["im2win"].workspace == 5 * 8 * 10 * (12 + 2) * 3
    assert found["direct"].workspace == 0


@pytest.mark.parametrize("algorithm", ["im2col", "im2win"])
def test_the_copy_and_the_product_move_the_tensor_twice(algorithm: Algorithm) -> None:
    way = ways(SIZES)[algorithm]
    (copy, once), (product, also_once) = way.kernels
    assert (once, also_once, way.images) == (1, 1, 5)
    assert isinstance(copy, StreamWork)
    assert copy.bytes == 4 * (math.prod(SIZES.source) + way.workspace)
    assert isinstance(product, MatrixWork)
    assert product.bytes == 4 * (way.workspace + 16 * 8 * 9 + 16 + math.prod(SIZES.result))
    assert product.macs == math.prod(SIZES.result) * 8 * 9
    assert product.whole_k == (algorithm == "im2win")


def test_direct_moves_its_operands_once_without_a_temporary_tensor() -> None:
    ((work, times),) = ways(SIZES)["direct"].kernels
    assert isinstance(work, DepthwiseWork)
    assert (times, work.macs) == (1, SIZES.macs)
    assert work.chain_us == 8 * 9 * ALL.direct_step_us
    assert work.bytes == 4 * (math.prod(SIZES.source) + 16 * 8 * 9 + 16 + math.prod(SIZES.result))


@pytest.mark.parametrize(("at_a_time", "launches"), [(5, 1), (4, 2), (3, 2), (2, 3), (1, 5)])
def test_images_are_processed_in_batches_that_fit_the_workspace(at_a_time: int, launches: int) -> None:
    limit = ConvolutionChoice(ALGORITHMS, (at_a_time * SIZES.windows() * 4 + 3) / MIB)
    way = ways(SIZES, limit)["im2win"]
    assert way.images == at_a_time
    assert way.workspace == at_a_time * SIZES.windows()
    assert sum(times for work, times in way.kernels if isinstance(work, StreamWork)) == launches
    products = [(work, times) for work, times in way.kernels if isinstance(work, MatrixWork)]
    assert sum(work.macs * times for work, times in products) == SIZES.macs


def test_a_workspace_too_small_for_one_image_rules_an_algorithm_out() -> None:
    assert set(ways(SIZES, ConvolutionChoice(ALGORITHMS, (SIZES.windows() * 4 - 1) / MIB))) == {"direct"}
    between = ConvolutionChoice(ALGORITHMS, SIZES.windows() * 4 / MIB)
    assert set(ways(SIZES, between)) == {"direct", "im2win"}


@pytest.mark.parametrize(
    ("kernel", "strides", "there"),
    [((3, 3), (3, 3), False), ((3, 3), (2, 2), True), ((1, 3), (1, 1), False), ((3, 1), (1, 1), False),
     ((5, 5), (4, 5), False), ((11, 11), (4, 4), True)],
)  # fmt: skip
def test_window_order_needs_windows_that_overlap_both_ways(
    kernel: tuple[int, int], strides: tuple[int, int], there: bool
) -> None:
    op = Conv2d(kernel, strides)
    result = tuple((40 - size) // step + 1 for size, step in zip(kernel, strides, strict=True))
    found = ways(Sizes(op, (1, 4, 40, 40), (1, 4, *result)))
    assert ("im2win" in found) == there
    assert "im2col" in found


@pytest.mark.parametrize(("size", "dilation", "there"), [(8, 1, True), (8, 3, False), (40, 3, True), (3, 1, False)])
def test_window_order_is_smaller_than_column_order(size: int, dilation: int, there: bool) -> None:
    """With three of a narrow map's columns, or with eight where two windows read six, it would be larger."""
    width = size - 2 * dilation
    sizes = Sizes(Conv2d((3, 3), dilations=(dilation, dilation)), (1, 4, size, size), (1, 4, width, width))
    assert (sizes.windows() < 9 * 4 * width**2) == there
    assert ("im2win" in ways(sizes)) == there


def test_a_pointwise_convolution_is_a_product_without_a_copy() -> None:
    assert set(ways(Sizes(Conv2d((1, 1)), (1, 4, 8, 8), (1, 4, 8, 8)))) == {"direct"}
    assert set(ways(Sizes(Conv2d((1, 1), (2, 2)), (1, 4, 8, 8), (1, 4, 4, 4)))) == {"direct", "im2col"}


def graph_of(op: Conv2d, shape: tuple[int, ...], out: int) -> Graph:
    build = Builder("one")
    x = build.input(*shape)
    weights = np.zeros((out, shape[1] // op.groups, *op.kernel), np.float32)
    return build.graph(build.op(op, x, build.constant(weights)))


def gpu(name: str, *algorithms: Algorithm, workspace_mib: float = 1024.0) -> Gpu:
    return replace(load_target(name).any_gpu, convolutions=ConvolutionChoice(algorithms, workspace_mib))


@pytest.mark.parametrize("name", ["pimflow", "turing-pim", "rtx3090"])
@pytest.mark.parametrize("shape", [(1, 64, 56, 56), (8, 3, 64, 64), (2, 256, 14, 14)])
def test_the_fastest_way_is_taken(name: str, shape: tuple[int, ...]) -> None:
    graph = graph_of(Conv2d((3, 3), (1, 1), (1, 1, 1, 1)), shape, 64)
    (node,) = graph.nodes
    prices = {way: GpuHost("gpu", gpu(name, way)).cost(graph, node).time_us for way in ALGORITHMS}
    host = GpuHost("gpu", gpu(name, *ALGORITHMS))
    assert host.cost(graph, node).time_us == min(prices.values())
    assert prices[host.algorithm(graph, node) or "library"] == min(prices.values())  # type: ignore[index]
    usual = GpuHost("gpu", load_target(name).any_gpu)
    assert usual.cost(graph, node).time_us == prices["library"]
    assert usual.algorithm(graph, node) == ""


def test_a_price_is_the_sum_of_its_kernels() -> None:
    spec = gpu("rtx3090", "im2win")
    host = GpuHost("gpu", spec)
    graph = graph_of(OP, SIZES.source, 16)
    (node,) = graph.nodes
    way = ways(replace(SIZES, more=0))["im2win"]
    assert host.cost(graph, node) == sequence_cost(KernelSequence(way.kernels), spec, spec.memory_channels)
    assert host.workspace_elements(graph, node) == way.workspace


def test_the_library_handles_everything_else() -> None:
    host = GpuHost("gpu", gpu("pimflow", "im2win"))
    for op, shape in ((Conv2d((1, 1)), (1, 8, 4, 4)), (Conv2d((2, 2), (2, 2)), (1, 8, 4, 4))):
        graph = graph_of(op, shape, 8)
        assert host.algorithm(graph, graph.nodes[0]) == ""
        assert host.workspace_elements(graph, graph.nodes[0]) == 0


def test_shipped_machines_run_convolutions_as_their_models_describe_them() -> None:
    assert all(load_target(name).any_gpu.convolutions is None for name in ("pimflow", "turing-pim", "rtx3090"))
    assert with_convolutions(load_target("pimflow"), None, None) == load_target("pimflow")


@pytest.mark.parametrize(
    ("way", "workspace_mib", "told"),
    [
        ("im2win", None, ['gpu.convolutions.algorithms = ["im2win"] (not ["library"])']),
        (None, 3.0, ["gpu.convolutions.workspace_mib = 3.0 (not 1024.0)"]),
        ("library", None, []),
    ],
)
def test_only_changes_from_the_target_are_reported(
    way: str | None, workspace_mib: float | None, told: list[str]
) -> None:
    """A target without a choice means the library; only differences from that are reported."""
    assert [str(change) for change in with_convolutions(load_target("pimflow"), way, workspace_mib).overrides] == told


def test_a_machine_without_gpu_has_no_ways() -> None:
    with pytest.raises(TargetError, match="has no GPU"):
        pimflow.compile("zoo:toy", target="upmem", convolutions="im2win")


@pytest.fixture(scope="module")
def compiled() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:resnet-50", target="rtx3090", policy="gpu", convolutions="im2win", use_cache=False)


def test_the_workspace_is_part_of_the_memory_plan(compiled: pimflow.CompiledModel) -> None:
    costs, plan = compiled.machine.costs, compiled.memory
    plan.check()
    assert len(plan.workspaces) == len(costs.algorithms(compiled.graph)) > 10
    usual = pimflow.compile("zoo:resnet-50", target="rtx3090", policy="gpu", use_cache=False).memory
    assert usual.workspaces == {}
    for name, region in plan.workspaces.items():
        node = compiled.graph.node(name)
        held, x = plan.regions[region], compiled.graph.in_values(node)[0]
        assert isinstance(node.op, Conv2d)
        assert x is not None
        assert x.shape is not None
        columns = x.shape[3] + node.op.pads[1] + node.op.pads[3]
        assert held.bytes == 4 * x.shape[1] * compiled.graph.shape(node.output)[2] * columns * node.op.kernel[0]
        live = [place for place in plan.places.values() if place.first <= held.first <= place.last]
        assert {node.inputs[0], node.output} <= {name for name, place in plan.places.items() if place in live}
    assert plan.live_bytes >= usual.live_bytes
    assert plan.bytes_without_reuse > usual.bytes_without_reuse


def test_the_summary_and_the_rows_name_the_algorithm(compiled: pimflow.CompiledModel) -> None:
    told = dict(compiled.about)["convolutions"]
    assert told.startswith("17 by im2win; workspace at most 2.49 MB")
    rows = [row for row in compiled.report.nodes if row.ways]
    assert len(rows) == 17
    usual, costs = GpuHost("gpu", gpu("rtx3090")), compiled.machine.costs
    for row in rows:
        library, taken = row.ways
        node = compiled.graph.node(row.name)
        assert library == DeviceWay("gpu", "library", usual.cost(compiled.graph, node).time_us, False)
        assert taken == DeviceWay("gpu", "im2win", costs.node_cost(compiled.graph, node).time_us, True)
        prices = f"library {library.time_us:.2f} us, im2win {taken.time_us:.2f} us"
        assert row.why.endswith(f"; on the GPU by im2win ({prices})")


def test_values_are_those_of_the_layout(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert run("compile", "zoo:toy", "--convolutions", "im2col", "--policy", "gpu", "-o", out, "--no-cache") == 0
    assert "1 by im2col" in capsys.readouterr().out
    for arguments in ((), ("--arena",), ("--pim", "values"), ("--pim", "values", "--arena")):
        assert document(capsys, "verify", out, *arguments)["passed"]


def test_a_wrong_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For values the layout itself is used, not ONNX Runtime's convolution."""
    compiled = pimflow.compile("zoo:toy", policy="gpu", convolutions="im2win", use_cache=False)
    assert compiled.verify(pim="values").passed
    monkeypatch.setattr("pimflow.runtime.gpu.backend.convolve", lambda op, inputs, way: 2 * convolve(op, inputs, way))
    assert not compiled.verify(pim="values").passed
    assert compiled.verify().passed


def test_several_inferences_have_workspaces_of_their_own() -> None:
    """In flight, a workspace is live while its node runs, and does not overlap those of concurrent nodes."""
    found = pimflow.compile("zoo:toy", objective="throughput", convolutions="im2col", use_cache=False)
    assert found.memory_in_flight is not None
    alone = found.memory_in_flight.alone
    assert alone.workspaces
    for region in alone.workspaces.values():
        life = found.memory_in_flight.lives[region]
        assert life.last > life.first
    assert found.verify().passed
