"""Whatever prices the host alone includes the Pads that its library needs for uneven padding."""

from __future__ import annotations

import pytest

import pimflow
from pimflow.codegen import ConvProblem
from pimflow.ir import Builder, Conv2d, Pad
from pimflow.onnxio.export import to_onnx


def model(*, apart: bool) -> bytes:
    """A convolution with padding below and on the right only, in the convolution or in a Pad."""
    build = Builder()
    x = build.input(1, 16, 28, 28)
    if apart:
        x = build.op(Pad((0, 0, 0, 0), (0, 0, 1, 1)), x, name="pad")
    pads = (0, 0, 0, 0) if apart else (0, 0, 1, 1)
    x = build.op(Conv2d((3, 3), (2, 2), pads), x, build.weights(32, 16, 3, 3), name="conv")
    return bytes(to_onnx(build.graph(build.relu(x))).SerializeToString())


def inspected(target: str, *, apart: bool) -> dict[str, float]:
    return {row["name"]: row["gpu_us"] for row in pimflow.inspect(model(apart=apart), target=target)}


@pytest.mark.parametrize("target", ["pimflow", "turing-pim"])
def test_inspect_layer_train_and_compile_include_it(target: str) -> None:
    one, two = (inspected(target, apart=apart) for apart in (False, True))
    assert two["pad"] > 1
    assert one["conv"] == pytest.approx(two["conv"] + two["pad"])
    compiled = pimflow.compile(model(apart=False), target=target, policy="gpu", check=False)
    assert compiled.report.baseline.time_us == pytest.approx(one["conv"])
    problem = ConvProblem(1, 16, 32, 28, 28, (3, 3), (2, 2), (0, 0, 1, 1))
    assert pimflow.layer(problem, target=target).baseline_us == pytest.approx(one["conv"], rel=0.05)  # without the Relu
    kernels = {kernel.name: kernel.time_us for kernel in pimflow.train(model(apart=False), target=target).trace.kernels}
    pads = {name: time_us for name, time_us in kernels.items() if name.startswith("pad_")}
    assert pads["pad_x"] == pytest.approx(two["pad"])
    assert len(pads) == 2  # and one after it, for the gradient of the weights
    assert kernels["conv"] == pytest.approx(two["conv"])


def test_even_padding_needs_no_pad() -> None:
    build = Builder()
    graph = build.graph(build.conv(build.input(1, 16, 28, 28), 32, 3, pad=1))
    trace = pimflow.train(bytes(to_onnx(graph).SerializeToString())).trace
    assert not any(kernel.name.startswith("pad_") for kernel in trace.kernels)
