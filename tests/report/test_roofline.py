"""Rooflines: one convolution computed by hand, and no kernel model exceeds its machine's peaks."""

from __future__ import annotations

import numpy as np
import pytest

import pimflow
from support.cli import Capture, document, run
from support.onnx_models import single


@pytest.fixture(scope="module")
def conv() -> pimflow.Inspection:
    weights = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    return pimflow.inspect(single("Conv", (1, 16, 20, 20), [weights], pads=[1, 1, 1, 1]))


def test_a_convolution_by_hand(conv: pimflow.Inspection) -> None:
    (node,) = conv.nodes
    assert node.macs == 20 * 20 * 32 * 16 * 9
    assert node.bytes == 2 * (16 * 400 + 32 * 16 * 9 + 32 * 400)  # half precision
    gpu = pimflow.load_target("pimflow").any_gpu
    bandwidth = gpu.memory_channels * gpu.channel_gb_per_s * 1e3
    peak = gpu.sms * gpu.peak_macs_per_sm_cycle * gpu.clock_mhz
    assert conv.roofs["gpu"] == pytest.approx((peak, bandwidth))
    assert node.least_us["gpu"] == pytest.approx(max(node.macs / peak, node.bytes / bandwidth))


def test_which_of_the_two_bounds(conv: pimflow.Inspection) -> None:
    (node,), roof = conv.nodes, conv.roofs["gpu"]
    assert node.macs / node.bytes > roof.ridge
    last = next(line for line in conv.roofline().splitlines() if line.startswith(node.name)).split()[-1]
    assert last == "compute"
    matmul = pimflow.inspect(single("MatMul", (1, 512), [np.ones((512, 512), np.float32)]))
    assert matmul.roofline().splitlines()[2].split()[-1] == "memory"


@pytest.mark.parametrize("target", ["pimflow", "pimflow-cpu"])
def test_no_modelled_kernel_passes_the_roof(target: str) -> None:
    nodes = pimflow.inspect("zoo:mobilenet-v2", target=target).nodes
    compared = 0
    for node in nodes:
        for device, time_us in node.times_us.items():
            least = node.least_us[device]
            assert (least is None) == (time_us is None)
            if least and time_us:
                assert least <= time_us
                compared += 1
    assert compared > 80


def test_the_verb(capsys: Capture) -> None:
    found = document(capsys, "inspect", "zoo:toy")
    assert found["roofs"]["gpu"]["macs_per_us"] > 0
    assert run("inspect", "zoo:toy", "--roofline") == 0
    out = capsys.readouterr().out
    assert "compute-bound above" in out
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["conv2", "depthwise", "conv1"]
