"""The public Python API, as shown in the docs and the README."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pimflow
from pimflow import compiler
from pimflow.compiled import original
from pimflow.errors import GraphError, ModelError
from pimflow.frontend import Loaded
from pimflow.ir import Graph, Plan
from pimflow.search import solver
from support.values import assert_varies


def test_every_public_name_is_there_and_documented() -> None:
    for name in pimflow.__all__:
        item = getattr(pimflow, name)
        assert name.startswith("__") or item.__doc__, name
    assert sorted(pimflow.__all__) == dir(pimflow)
    with pytest.raises(AttributeError):
        _ = pimflow.no_such_name


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("onnx", "onnxruntime", "numpy", "networkx", "pulp", "scipy")
    code = f"import sys, pimflow; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_compiling_loads_nothing_that_only_a_proof_or_a_rare_model_or_machine_needs(tmp_path: Path) -> None:
    rare = [
        "pulp",
        "numpy.random",
        "concurrent.futures",
        "pimflow.frontend.recovery",
        "pimflow.ir.gradients",
        "pimflow.passes.differentiate",
        "pimflow.passes.relational",
        "pimflow.passes.segment_gemm",
        "pimflow.frontend.relation_binding",
        "pimflow.runtime.cpu.backend",
        "pimflow.runtime.upmem.backend",
        "pimflow.verify.compare",
    ]
    model, out = str(Path(__file__).parent / "data" / "exported" / "densenet.onnx"), str(tmp_path / "out")
    code = (
        "import sys, numpy, pimflow\n"
        "before = set(sys.modules)  # old numpy imports all of itself\n"
        f"pimflow.compile({model!r}, use_cache=False).save({out!r})\n"
        f"print([name for name in {rare} if name in sys.modules and name not in before])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert all(importlib.util.find_spec(name) for name in rare)


def test_the_graph_as_read_is_freed_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[weakref.ref[Graph]] = []
    seen: list[Graph | None] = []

    def read_model(*arguments: Any) -> Loaded:
        loaded = original.read_model(*arguments)
        read.append(weakref.ref(loaded.graph))
        return loaded

    def search(*arguments: Any, **options: Any) -> Plan:
        seen.append(read[0]())
        return solver.solve(*arguments, **options)

    monkeypatch.setattr(compiler, "read_model", read_model)
    monkeypatch.setattr(compiler, "solve", search)
    pimflow.compile("zoo:toy", policy="gpu", use_cache=False, jobs=1)
    assert seen == [None]


def test_a_folder_without_permissions_is_not_called_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # as tests may run as root
    with pytest.raises(ModelError, match="cannot be read: Permission denied; check its permissions"):
        pimflow.load(tmp_path)


def test_compile_run_save_load(tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", target="pimflow", policy="MD-DP", use_cache=False)
    assert compiled.plan.policy == "md-dp"
    assert compiled.streams
    assert all(len(streams) == 16 for streams in compiled.streams.values())
    assert "speedup" in compiled.summary()
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    before = compiled.run({"input": image})
    loaded = pimflow.load(compiled.save(tmp_path / "out"))
    after = loaded.run({"input": image})
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert_varies(array)
        np.testing.assert_array_equal(array, after[name])
    assert loaded.plan == compiled.plan
    assert loaded.streams == compiled.streams
    assert loaded.report == compiled.report
    assert loaded.timeline.makespan_us == compiled.timeline.makespan_us
    assert loaded.verify().passed


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_a_model_may_be_given_in_any_form(tmp_path: Path, form: str) -> None:
    import pimflow_zoo

    model = pimflow_zoo.build("toy")
    onnx.save(model, tmp_path / "toy.onnx")
    given = {"path": tmp_path / "toy.onnx", "bytes": model.SerializeToString(), "proto": model}[form]
    compiled = pimflow.compile(given, policy="newton++", use_cache=False)
    compiled.save(tmp_path / "out")
    (tmp_path / "toy.onnx").unlink()
    assert pimflow.load(tmp_path / "out").verify(seed=5).passed


def test_mistakes_are_pimflow_errors() -> None:
    with pytest.raises(pimflow.PimflowError, match="policy"):
        pimflow.compile("zoo:toy", policy="best")
    with pytest.raises(pimflow.PimflowError, match="zoo"):
        pimflow.compile("zoo:toyota")
    with pytest.raises(pimflow.PimflowError, match="target"):
        pimflow.compile("zoo:toy", target="toaster")
    with pytest.raises(pimflow.PimflowError, match="input"):
        pimflow.compile("zoo:toy", policy="gpu", use_cache=False).run({})


def test_a_broken_graph_is_not_blamed_on_a_pass() -> None:
    graph = pimflow.opt("zoo:toy", "cleanup").graph
    with pytest.raises(GraphError, match="graph output 'logits' is not made by any node"):
        pimflow.opt(replace(graph, nodes=graph.nodes[:-1]), "cleanup")


def test_external_data_travel_with_the_original(tmp_path: Path) -> None:
    import pimflow_zoo

    home = tmp_path / "home"
    home.mkdir()
    onnx.save(
        pimflow_zoo.build("toy"), home / "toy.onnx", save_as_external_data=True, location="plan.json", size_threshold=0
    )
    compiled = pimflow.compile(home / "toy.onnx", policy="pim", use_cache=False)
    compiled.save(tmp_path / "out")
    for path in home.iterdir():
        path.unlink()
    loaded = pimflow.load(tmp_path / "out")
    assert loaded.plan == compiled.plan
    assert loaded.verify().passed
