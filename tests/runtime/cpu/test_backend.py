"""A CPU as a unit with a GPU host, and as a host: searched, executed, saved, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pimflow
from pimflow.ir import Builder, Graph, OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.onnxio import to_onnx
from pimflow.runtime.backends import host_of
from pimflow.runtime.costs import CostModel
from pimflow.targets import Target, load_target, parse_target, target_text


def beside_gpu(link_gb_per_s: float) -> Target:
    """A GPU with slow launches, and a CPU over a link."""
    text = target_text("pimflow-cpu").replace("launch_cycles = 5000", "launch_cycles = 500000")
    text = text[: text.index("\n[pim]")] + text[text.index("\n[cpu]") :]
    return parse_target(text.replace("link_gb_per_s = 12.3", f"link_gb_per_s = {link_gb_per_s}"), "machine.toml")


def model() -> Any:
    build = Builder()
    hidden = build.relu(build.matmul(build.input(32, 64, name="x"), 64))
    return to_onnx(build.graph(build.onnx("Softmax", hidden, name="out")))


def test_its_peaks_are_its_own() -> None:
    target = load_target("pimflow-cpu")
    costs = CostModel(target)
    unit, host = costs.units["cpu"], host_of(target.with_units(cpu=target.units["cpu"]))
    assert unit.roof is not None
    spec = target.units["cpu"]
    assert unit.roof.bytes_per_us == spec.memory_gb_per_s * 1e3  # type: ignore[attr-defined]
    assert host.roof != unit.roof


def test_small_kernels_go_where_a_call_is_cheap(tmp_path: Path) -> None:
    compiled = pimflow.compile(model(), target=beside_gpu(1e4), policy="auto", use_cache=False)
    placed = {node.kind: node.device for node in compiled.graph.nodes}
    assert placed["MatMul"] == placed["Softmax"] == "cpu"
    assert compiled.report.speedup > 5
    assert compiled.verify(pim="values").passed
    again = pimflow.load(compiled.save(tmp_path / "out"))
    assert again.programs == compiled.programs
    assert again.verify(pim="values", arena=True).passed


def test_a_slow_link_keeps_them_on_the_gpu() -> None:
    compiled = pimflow.compile(model(), target=beside_gpu(1e-3), policy="auto", use_cache=False)
    assert {node.device for node in compiled.graph.nodes} == {"gpu"}


def test_copies_cross_the_link() -> None:
    costs = CostModel(load_target("pimflow-cpu"))
    transfer = costs.units["cpu"].transfer(10**6, 0)
    assert transfer is not None
    assert transfer.load_us == pytest.approx(8 + 4e6 / 12.3e3)
    assert (transfer.store_us, transfer.link) == (0, "link")
    assert transfer.load_mj == pytest.approx(4e6 * 80e-9)


def views() -> Graph:
    build = Builder()
    flat = build.reshape(build.input(2, 8, name="x"), 16, name="flat")
    pair = [((4,), "float32"), ((4,), "int64")]
    values, _ = build.node(OnnxOp("TopK"), (flat, build.constant(np.array([4]))), pair, "top")
    return build.graph(build.add(values, values, name="sum"))


def test_unsupported_nodes_are_refused() -> None:
    costs, graph = CostModel(load_target("pimflow-cpu")), views()
    reasons = {}
    for node in graph.nodes:
        work = costs.work(graph, node, "cpu")
        reasons[node.name] = work.reason if isinstance(work, Refusal) else ""
    assert reasons == {"flat": "Reshape only moves data", "top": "TopK has 2 results", "sum": ""}


def test_as_the_host_it_runs_every_node() -> None:
    text = target_text("pimflow-cpu")
    cpu, pim = text[text.index("\n[cpu]") :], text[text.index("\n[pim]") : text.index("\n[cpu]")]
    machine = parse_target(f'name = "server"\ndescription = "no GPU"\n{cpu}\n{pim}', "server.toml")
    assert machine.host == "cpu"
    compiled = pimflow.compile("zoo:toy", target=machine, policy="auto", use_cache=False)
    assert compiled.timeline.makespan_us > 0
    assert compiled.verify(pim="values").passed
    host = host_of(machine)
    assert host.without_channels(3) is host
    assert host.copy_cost(10**6, "float32").time_us == pytest.approx(5 + 1e6 / 23040)
    assert host.static_energy_mj(1e6) == 0
