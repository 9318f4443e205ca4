"""Bags of embeddings in training: both of PyTorch's forms, against ONNX Runtime's Loops and differences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import pytest

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Array, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients
from support.values import assert_close, run_in_ort

WORDS = np.array([1, 2, 4, 2, 4, 3, 2, 6, 1])

STACKED = """
    ends = Slice (offsets, one, bags_1, zero)
    bags = Loop (trips, yes) <body: graph = body (int64 i, bool on) => (bool go, double[d] bag) {
        start = Gather (offsets, i)
        end = Gather (ends, i)
        begin = Unsqueeze (start, zero)
        stop = Unsqueeze (end, zero)
        own = Slice (words, begin, stop, zero)
        rows = Gather (table, own)
        FACTORS
        bag = REDUCED
        go = Cast <to: int = 9> (yes)
    }>
"""
"""dynamo=False: a Loop stacks the reductions of rows that it looks up."""

APPENDED = """
    looked = Gather (table, words)
    factors = Unsqueeze (weights, one)
    rows = Mul (looked, factors)
    none = SequenceEmpty <dtype: int = 11> ()
    last, parts = Loop ("", yes, first, none) <body: graph = body
            (int64 run, bool on, int64 i, seq(double[n, d]) before) => (bool go, int64 next, seq(double[n, d]) after) {
        place = Reshape (i, minus)
        following = Add (place, unit)
        start = Slice (offsets, place, following)
        after_start = Add (place, unit)
        after_end = Add (place, two)
        end = Slice (offsets, after_start, after_end)
        empty = Equal (start, end)
        bag = If (empty) <then_branch: graph = nothing () => (double[1, 4] zeros) {
            zeros = Constant <value: tensor = double[1, 4] {0, 0, 0, 0}> ()
        }, else_branch: graph = some () => (double[m, d] reduced) { REDUCED }>
        after = SequenceInsert (before, bag)
        next = Add (i, unit)
        go = Less (next, trips)
    }>
    bags = ConcatFromSequence <axis: int = 0> (parts)
"""
"""dynamo=True: a Loop appends the reductions of rows looked up before, with zeros for empty bags."""

LAST_MEAN = """
    part = Slice (rows, start, end)
    is_last = Equal (i, last_place)
    reduced = If (is_last) <then_branch: graph = whole () => (double[k, d] mean) {
        total = ReduceSum (part, zero)
        left = Sub (count, start)
        divisor = Cast <to: int = 11> (left)
        mean = Div (total, divisor)
    }, else_branch: graph = others () => (double[l, d] average) { average = ReduceMean (part, zero) }>
"""
LAST_MAX = """
    is_last = Equal (i, last_place)
    part = If (is_last) <then_branch: graph = rest () => (double[k, d] tail) { tail = Slice (rows, start, count) },
        else_branch: graph = others () => (double[l, d] middle) { middle = Slice (rows, start, end) }>
    reduced = ReduceMax (part, zero)
"""

FORMS = {
    "sum": (STACKED, "ReduceSum <keepdims: int = 0> (rows, zero)"),
    "weighted sum": (STACKED, "ReduceSum <keepdims: int = 0> (rows, zero)"),
    "mean": (STACKED, "ReduceMean <keepdims: int = 0> (rows, zero)"),
    "max": (STACKED, "ReduceMax <keepdims: int = 0> (rows, zero)"),
    "appended sum": (APPENDED, "part = Slice (rows, start, end)\n reduced = ReduceSum (part, zero)"),
    "appended mean": (APPENDED, LAST_MEAN),
    "appended max": (APPENDED, LAST_MAX),
}


def model(name: str, replaced: Mapping[str, str] | None = None, opset: int = 18) -> Graph:
    """A model of bags between five offsets."""
    form, reduced = FORMS[name]
    weighted = name == "weighted sum"
    factors = "mine = Slice (weights, begin, stop, zero)\n factor = Unsqueeze (mine, one)" if weighted else ""
    factors += "\n scaled = Mul (rows, factor)" if weighted else ""
    reduced = reduced.replace("(rows", "(scaled") if weighted else reduced
    text = form.replace("FACTORS", factors).replace("REDUCED", reduced)
    for old, new in (replaced or {}).items():
        assert old in text
        text = text.replace(old, new)
    given = f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        bags_of_words (double[7, 4] table, int64[9] words, int64[5] offsets, double[9] weights) => (double[4, 4] out)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] bags_1 = {{9}}, int64 trips = {{4}}, bool yes = {{1}},
         int64 first = {{0}}, int64[1] minus = {{-1}}, int64 unit = {{1}}, int64 two = {{2}}, int64[1] count = {{9}},
         int64 last_place = {{3}}, double half = {{0.5}}, double[4, 4] sized>
        {{ {text} sized = Cast <to: int = 11> (bags)
           out = Tanh (sized) }}"""
    return load_model(onnx.parser.parse_model(given))


def inputs(*offsets: int) -> dict[str, Array]:
    return {"words": WORDS, "offsets": np.array(offsets)}


@pytest.mark.parametrize("name", FORMS)
def test_bags_are_reduced_and_have_gradients(name: str) -> None:
    graph = model(name)
    step = check_gradients(graph, inputs(0, 4, 5, 7, 9)).graph
    assert not any(node.kind in ("Loop", "SequenceEmpty", "ConcatFromSequence") for node in step.nodes)
    rng = np.random.default_rng(5)
    floats = {key: rng.standard_normal(graph.shape(key)) for key in ("table", "weights")}
    given = {**floats, **inputs(0, 4, 5, 7, 9), "out.gradient": np.ones((4, 4))}
    expected = run_in_ort(graph, {key: given[key] for key in graph.inputs})["out"]
    made = run_in_ort(step.replace(outputs=("out",)), given)["out"]
    assert_close(made, expected, 1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_empty_bags_are_zeros(name: str) -> None:
    """At either end and in the middle, as in PyTorch; rows after the last offset belong to no bag."""
    step = check_gradients(model(name), inputs(0, 0, 5, 5, 7)).graph
    given = {**inputs(0, 0, 5, 5, 7), "table": np.ones((7, 4)), "weights": np.ones(9), "out.gradient": np.ones((4, 4))}
    made = run_in_ort(step.replace(outputs=("out",)), given)["out"]
    sizes = np.array([0, 5, 0, 2]) if "sum" in name else np.array([0, 1, 0, 1])
    np.testing.assert_allclose(np.arctanh(made), np.tile(sizes[:, None], (1, 4)), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        ("sum", {"Gather (ends, i)": "Gather (offsets, i)"}),  # every bag is empty
        ("sum", {"Slice (offsets, one,": "Slice (offsets, minus,"}),  # ends are not the next starts
        ("sum", {"rows = Gather (table, own)": "looked = Gather (table, own)\n rows = Tanh (looked)"}),
        ("appended sum", {"two)": "unit)"}),
        ("appended sum", {"SequenceInsert (before, bag)": "SequenceInsert (before, bag, first)"}),  # in reverse
        ("sum", {"bag = ReduceSum": "total = ReduceSum", "go = Cast": "bag = Div (total, half)\n go = Cast"}),
        ("appended mean", {"Sub (count, start)": "Sub (count, end)"}),
        ("appended mean", {"ReduceSum (part, zero)": "ReduceMean (part, zero)"}),
    ],
)
def test_other_loops_have_no_gradient(name: str, replaced: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="no gradient"):
        training_step(model(name, replaced), Differentiate(wrt=("table",)))


def test_opsets_that_cannot_scatter_maxima() -> None:
    by_attribute = {"<keepdims: int = 0> (rows, zero)": "<keepdims: int = 0, axes: ints = [0]> (rows)"}
    with pytest.raises(ModelError, match="Loop has no gradient rule"):
        training_step(model("max", by_attribute, opset=17), Differentiate(wrt=("table",)))
