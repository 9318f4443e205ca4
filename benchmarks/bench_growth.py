"""User CPU time and peak memory of whole compilations as models grow.

Kinds of models: `chain` and `mixed`, convolutions with one and with five kinds of layers; `concats`, where each
convolution reads the last eight; `chained`, where each Concat reads the previous one; `sums`, where each node adds all
values before it (edges grow with the square of the nodes); `relus`, a chain of nodes that cost nothing to plan.

Run: python benchmarks/bench_growth.py [KIND ...] [--sizes 1000 2000 4000] [--policy pimflow]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from machine import here
from onnx import TensorProto, helper, numpy_helper

MIXED = ((16, 1), (32, 3), (24, 1), (16, 3), (64, 1))
WINDOW = 8


class Model:
    """An ONNX model, built node by node; weights of the same shape are stored once."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[tuple[int, ...], onnx.TensorProto] = {}
        self.random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def conv(self, value: str, channels: int, outputs: int, kernel: int) -> str:
        shape = (outputs, channels, kernel, kernel)
        if shape not in self.weights:
            weights = self.random.standard_normal(shape) / np.sqrt(channels * kernel * kernel)
            self.weights[shape] = numpy_helper.from_array(weights.astype(np.float32), "w" + "x".join(map(str, shape)))
        return self.add("Conv", value, self.weights[shape].name, pads=[kernel // 2] * 4)

    def save(self, output: str, path: Path) -> None:
        read = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "growth", [read], [made], list(self.weights.values()))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def convolutions(size: int, path: Path, layers: tuple[tuple[int, int], ...]) -> None:
    model, value, channels = Model(1, 16, 14, 14), "x", 16
    for index in range(size):
        outputs, kernel = layers[index % len(layers)]
        value, channels = model.conv(value, channels, outputs, kernel), outputs
    model.save(value, path)


def concats(size: int, path: Path) -> None:
    model, values = Model(1, 8, 14, 14), ["x"]
    for _ in range(size):
        last = values[-WINDOW:]
        value = model.add("Concat", *last, axis=1) if len(last) > 1 else last[0]
        values.append(model.conv(value, 8 * len(last), 8, 1))
    model.save(values[-1], path)


def chained(size: int, path: Path) -> None:
    model, value = Model(1, 2, 4, 4), "x"
    for _ in range(size):
        value = model.add("Concat", value, "x", axis=1)
    model.save(value, path)


def sums(size: int, path: Path) -> None:
    model, values = Model(1, 4), ["x"]
    for _ in range(size):
        values.append(model.add("Relu", model.add("Sum", *values)))
    model.save(values[-1], path)


def relus(size: int, path: Path) -> None:
    model, value = Model(1, 4), "x"
    for _ in range(size):
        value = model.add("Relu", value)
    model.save(value, path)


KINDS: dict[str, Callable[[int, Path], None]] = {
    "chain": lambda size, path: convolutions(size, path, ((16, 1),)),
    "mixed": lambda size, path: convolutions(size, path, MIXED),
    "concats": concats,
    "chained": chained,
    "sums": sums,
    "relus": relus,
}


def compiled(model: Path, policy: str, folder: Path) -> tuple[float, float]:
    """User CPU seconds and peak GiB of a compilation in a separate process."""
    command = [sys.executable, "-m", "pimflow", "compile", str(model), "--policy", policy, "--no-cache", "-q"]
    process = subprocess.Popen([*command, "-o", str(folder / "out")])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"compiling {model} failed")
    return usage.ru_utime, usage.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[250, 500, 1000])
    parser.add_argument("--policy", default="pimflow")
    arguments = parser.parse_args()
    print(f"{here()}; policy {arguments.policy}")
    print(f"{'model':>8} {'size':>9} {'file MB':>8} {'user s':>8} {'ms each':>8} {'peak GiB':>9}")
    for kind in arguments.kinds or KINDS:
        for size in arguments.sizes:
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder, "model.onnx")
                KINDS[kind](size, model)
                seconds, peak = compiled(model, arguments.policy, Path(folder))
                megabytes = model.stat().st_size / 1e6
            each = 1000 * seconds / size
            print(f"{kind:>8} {size:9,} {megabytes:8.2f} {seconds:8.2f} {each:8.2f} {peak:9.2f}", flush=True)


if __name__ == "__main__":
    main()
