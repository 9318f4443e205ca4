"""Two compiled models compared: every figure is from one of the two reports, and the changes of nodes add up."""

from __future__ import annotations

import onnx
import pandas as pd
import pytest

import pimflow
import pimflow_zoo
from pimflow.errors import ArgumentError


@pytest.fixture(scope="module")
def alone() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="gpu", use_cache=False)


@pytest.fixture(scope="module")
def split() -> pimflow.CompiledModel:
    target = pimflow.override("pimflow", pim_channels=8)
    return pimflow.compile("zoo:toy", policy="newton++", target=target, use_cache=False)


def test_changes_add_up_and_match_the_reports(alone: pimflow.CompiledModel, split: pimflow.CompiledModel) -> None:
    found = pimflow.diff(alone, split)
    before, after = alone.report.result, split.report.result
    assert sum(node.change_us for node in found.nodes) == pytest.approx(after.time_us - before.time_us)
    assert sum(node.change_mj for node in found.nodes) == pytest.approx(after.energy_mj - before.energy_mj)
    assert before.time_us != after.time_us
    rows = {row.name: row for row in split.report.nodes}
    assert {node.row.name: node.b for node in found.nodes} == rows


def test_differences_are_named(alone: pimflow.CompiledModel, split: pimflow.CompiledModel) -> None:
    found = pimflow.diff(alone, split)
    assert [(change.key, change.a, change.b) for change in found.options] == [("policy", "gpu", "newton++")]
    assert [(change.key, change.a, change.b) for change in found.machine] == [("pim.channels", 16, 8)]
    moved = [node.row.name for node in found.nodes if node.program_b]
    assert moved == [row.name for row in split.report.nodes if row.leaves_host]
    assert all("order" in node.program_b for node in found.nodes if node.program_b)
    text = found.text()
    for word in ("pim.channels", "newton++", "conv1", "PIM"):
        assert word in text


def test_a_model_equals_itself(split: pimflow.CompiledModel) -> None:
    found = pimflow.diff(split, split)
    assert not any(node.differs for node in found.nodes)
    assert not found.options
    assert not found.machine
    assert "nodes are alike" in found.text()


def test_nodes_with_other_names_are_matched(alone: pimflow.CompiledModel, split: pimflow.CompiledModel) -> None:
    model = onnx.ModelProto.FromString(pimflow_zoo.build("toy").SerializeToString())
    for index, node in enumerate(model.graph.node):
        node.name = f"<script>{index}"
    renamed = pimflow.compile(model, policy="gpu", use_cache=False)
    found = pimflow.diff(renamed, split)
    assert found.renamed == len(found.nodes) == len(split.report.nodes)
    assert [(node.change_us, node.change_mj) for node in found.nodes] == [
        (node.change_us, node.change_mj) for node in pimflow.diff(alone, split).nodes
    ]
    assert "<script>" not in found._repr_html_()


def test_different_models_are_compared_as_far_as_they_match(alone: pimflow.CompiledModel) -> None:
    model = onnx.ModelProto.FromString(pimflow_zoo.build("toy").SerializeToString())
    model.graph.node.insert(1, onnx.helper.make_node("Neg", [model.graph.node[0].output[0]], ["negated"], "negate"))
    model.graph.node[2].input[0] = "negated"
    del model.graph.node[-1].input[2]
    other = pimflow.compile(model, policy="gpu", use_cache=False)
    found = pimflow.diff(alone, other)
    assert sum(node.change_us for node in found.nodes) == pytest.approx(
        other.report.result.time_us - alone.report.result.time_us
    )
    assert [node.row.name for node in found.nodes if node.a is None] == ["negate"]
    assert "the models are not the same file" in found.text()
    assert "only in B" in found.text(verbose=True)


def test_rows_are_for_pandas(alone: pimflow.CompiledModel, split: pimflow.CompiledModel) -> None:
    frame = pd.DataFrame(pimflow.diff(alone, split))
    assert frame["change_us"].sum() == pytest.approx(split.report.result.time_us - alone.report.result.time_us)
    assert set(frame["runs_on_a"]) == {"GPU"}


def test_anything_but_a_compiled_model_is_refused(alone: pimflow.CompiledModel) -> None:
    with pytest.raises(ArgumentError, match="'b' is an int; give an output folder or a compiled model"):
        pimflow.diff(alone, 3)  # type: ignore[arg-type]
