"""The text form: parses back to an equal graph, whatever its content; a syntax error names line and column."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import PimflowError, TextError
from pimflow.ir import (
    BatchNorm,
    Conv2d,
    Elementwise,
    Gemm,
    Graph,
    MatMul,
    Node,
    OnnxOp,
    Op,
    OpaqueAttribute,
    Pad,
    Pool2d,
    Value,
    register_op,
)
from pimflow.ir.compare import first_difference, graphs_equal
from pimflow.ir.ops.base import OPS
from pimflow.ir.placement import UNPLACED, MovementVerdict, Placement
from pimflow.ir.registry import scratch_registrations
from pimflow.ir.text import node_line, parse_graph, print_graph

PLAIN = [np.dtype(code).name for code in "?bhilBHILefdFD"]
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
DTYPES = tuple(dict.fromkeys(PLAIN + EXTENDED))


def element_type(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def graph_of(*nodes: Node, inputs: tuple[str, ...] = ("x",), constants: dict[str, np.ndarray] | None = None) -> Graph:
    constants = constants or {}
    made = [*inputs, *(name for node in nodes for name in node.outputs if name)]
    values = {name: Value(name, (1, 2, 4, 4)) for name in made}
    values |= {name: Value(name, array.shape, array.dtype.name) for name, array in constants.items()}
    outputs = nodes[-1].outputs if nodes else inputs
    return Graph("g", inputs, tuple(name for name in outputs if name), nodes, values, constants)


PLACED = Placement("pim", 3, stage=1, origin="a", movement=MovementVerdict(False, "why", (0, 2)))
CHAIN = graph_of(
    Node(Conv2d((3, 3), pads=(1, 1, 1, 1)), ("x", "w", ""), ("y",), "conv", PLACED, (("note", "a"),)),
    Node(Elementwise("Clip", (("max", 6.0), ("min", 0.0))), ("y",), ("z",), "clip"),
    constants={"w": np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3), "b": np.array([0.5, -1.25], np.float32)},
)
CHAIN_TEXT = """\
graph @g opset {"" = 17} {
  input %x : float32[1, 2, 4, 4]
  const %w = float32[2, 2, 3, 3] #HASH
  const %b = float32[2] [0.5, -1.25]
  %y = Conv2d(%x, %w, _) {kernel = [3, 3], pads = [1, 1, 1, 1]} : float32[1, 2, 4, 4] @conv on pim \
{region = 3, stage = 1, origin = "a", movement = MovementVerdict {free = false, reason = "why", copied = [0, 2]}} \
tags {note = "a"}
  %z = Elementwise(%y) {kind = "Clip", attributes = {max = 6.0, min = 0.0}} : float32[1, 2, 4, 4] @clip
  output %z
}
"""


# ---- round trips


def assert_round_trip(graph: Graph, inline_elements: int = 16) -> str:
    text = print_graph(graph, inline_elements)
    again = parse_graph(text, graph.constants)
    assert first_difference(graph, again) is None
    assert print_graph(again, inline_elements) == text
    return text


names = st.text(st.characters(), min_size=1, max_size=8) | st.sampled_from(
    [
        "/features/0/Conv_output_0",
        "conv:0",
        "a b",
        'quo"te',
        "back\\slash",
        "_",
        "nan",
        "missing",
        "input",
        ":",
        "naïve",
        "\ud800",
    ]
)
shapes = st.none() | st.lists(st.integers(-1, 9), max_size=5).map(tuple)
dtypes = st.sampled_from([*DTYPES, "", "missing", "seq(tensor(float))"])
field_ops = st.one_of([st.from_type(kind) for kind in OPS.values()])


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    size = int(np.prod(shape))
    if draw(st.integers(0, 9)) == 0:
        items = draw(
            st.lists(st.text(st.characters(), max_size=5) | st.binary(max_size=5), min_size=size, max_size=size)
        )
        array = np.empty(size, object)
        array[:] = items
        return array.reshape(shape)
    dtype = element_type(draw(st.sampled_from(DTYPES)))
    data = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    if dtype.name in ("bool", "int4", "uint4"):  # not every byte is an element of these types
        return (np.frombuffer(data, np.uint8) % 2).astype(dtype).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Structurally sound graphs (unique producers, defined before use) of arbitrary ops, types and names."""
    fresh = iter(draw(st.lists(names, min_size=24, max_size=24, unique=True)))
    known = [next(fresh) for _ in range(draw(st.integers(0, 3)))]
    inputs = tuple(known)
    constants = {next(fresh): draw(arrays()) for _ in range(draw(st.integers(0, 3)))}
    known += constants
    nodes = []
    for _ in range(draw(st.integers(0, 4))):
        read = tuple(draw(st.lists(st.sampled_from(["", *known]), max_size=4)))
        made = tuple(next(fresh) if draw(st.booleans()) else "" for _ in range(draw(st.integers(0, 3))))
        tags = tuple(draw(st.lists(st.tuples(names, st.text(st.characters(), max_size=9)), max_size=3)))
        placement = draw(st.from_type(Placement)) if draw(st.booleans()) else UNPLACED
        nodes.append(Node(draw(field_ops), read, made, next(fresh), placement, tags))
        known += [name for name in made if name]
    values = {name: Value(name, draw(shapes), draw(dtypes)) for name in [*known, next(fresh)]}
    for name, array in constants.items():
        if draw(st.booleans()):
            values[name] = Value(name, array.shape, array.dtype.name)
    outputs = tuple(draw(st.lists(st.sampled_from(known), max_size=3))) if known else ()
    opset = draw(st.dictionaries(names | st.just(""), st.integers(1, 30), max_size=2))
    return Graph(draw(names), inputs, outputs, tuple(nodes), values, constants, opset)


@settings(max_examples=100)
@given(graphs(), st.sampled_from([0, 3, 16, 1000]))
def test_any_graph_parses_back_to_an_equal_one(graph: Graph, inline_elements: int) -> None:
    assert_round_trip(graph, inline_elements)


@settings(max_examples=100)
@given(st.sampled_from(DTYPES), st.binary(min_size=16, max_size=16))
def test_every_bit_of_an_inline_constant_survives(dtype: str, data: bytes) -> None:
    if dtype in ("bool", "int4", "uint4"):
        data = bytes(byte % 2 for byte in data)
    array = np.frombuffer(data, element_type(dtype))
    text = print_graph(graph_of(constants={"c": array}))
    again = parse_graph(text).constants["c"]
    assert again.dtype == array.dtype
    assert again.tobytes() == data


def test_the_text_matches_the_golden_file() -> None:
    text = assert_round_trip(CHAIN)
    digest = text.partition("#")[2][:16]
    assert int(digest, 16) > 0
    assert text == CHAIN_TEXT.replace("HASH", digest)


def test_comments_and_white_space_do_not_matter() -> None:
    text = print_graph(CHAIN).replace("\n", "  // a remark\n\n").replace(",", " ,\t")
    assert graphs_equal(parse_graph(text, CHAIN.constants), CHAIN)


def test_defaults_are_left_out_and_others_are_shown() -> None:
    def line(op: Op) -> str:
        return node_line(CHAIN, Node(op, ("x",), ("z",), "n"))

    assert line(BatchNorm()) == "%z = BatchNorm(%x) : float32[1, 2, 4, 4] @n"
    assert "BatchNorm(%x) {epsilon = 0.001} :" in line(BatchNorm(1e-3))
    assert 'Pool2d(%x) {kind = "max", kernel = [3, 3], ceil_mode = true} :' in line(
        Pool2d("max", (3, 3), ceil_mode=True)
    )
    assert 'OpaqueAttribute {serialized = b"\\x00a"}' in line(
        OnnxOp("If", attributes=(("body", OpaqueAttribute(b"\0a")),))
    )
    # -0.0 equals the default 0.0, but is another number.
    assert "value = -0.0" in line(Pad((0,), (0,), -0.0))


def test_a_new_op_needs_no_new_code() -> None:
    with scratch_registrations():

        @register_op
        @dataclass(frozen=True)
        class Swirl(Op):
            turns: tuple[int, ...]
            speed: float = 1.0

        text = assert_round_trip(graph_of(Node(Swirl((1, 2)), ("x",), ("y",), "n")))
    with pytest.raises(TextError, match="unknown op Swirl"):
        parse_graph(text)


def test_numpy_numbers_in_fields_print_as_numbers() -> None:
    op = Gemm(alpha=np.float64(0.5), trans_b=np.bool_(True))  # type: ignore[arg-type]  # numpy's, by mistake
    assert "{alpha = 0.5, trans_b = true}" in node_line(CHAIN, Node(op, ("x",), ("z",), "n"))


def test_a_new_array_with_an_old_id_is_hashed_again() -> None:
    for value in range(50):  # arrays are created and freed, and may get the same id
        array = np.full(100, value, np.float32)
        text = print_graph(graph_of(constants={"c": array}))
        other = np.full(100, value + 1, np.float32)
        with pytest.raises(TextError, match="is a different one"):
            parse_graph(text, {"c": other})
        assert_round_trip(graph_of(constants={"c": array}))


def test_broken_graphs_print() -> None:
    nodes = (Node(MatMul(), ("nowhere", "x"), ("y",), "n"), Node(MatMul(), ("y", "y"), ("y",), "n"))
    text = print_graph(Graph("g", ("x",), ("gone",), nodes, {}, {}))
    assert "%y = MatMul(%nowhere, %x) : missing @n" in text
    assert "output %gone" in text


# ---- errors


HEAD = 'graph @g opset {"" = 17} {\n  input %x : float32[1]\n'


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("", 1, 1, "expected 'graph' but found the end of the text"),
        ("graph g", 1, 7, "expected the graph's name"),
        ("graph @g {", 1, 10, "expected 'opset'"),
        (HEAD, 3, 1, "expected a node, input, const, value, output or '}' but found the end"),
        (HEAD + "  $\n}", 3, 3, "unexpected character '$'"),
        (HEAD + "  input %y float32[1]\n}", 3, 12, "expected ':'"),
        (HEAD + "  input %y : float32[1.5]\n}", 3, 22, "expected a dimension"),
        (HEAD + "  input %x : float32[1]\n}", 3, 9, "%x is defined twice"),
        (HEAD + "  output %y\n}", 3, 10, "%y is not defined"),
        (HEAD + "  %y = Conv3d(%x) : float32[1] @n\n}", 3, 8, "unknown op Conv3d"),
        (HEAD + "  %y = MatMul(%x, %q) : float32[1] @n\n}", 3, 19, "%q is not defined"),
        (HEAD + "  %y = MatMul(%x) {a = 1} : float32[1] @n\n}", 3, 20, "MatMul has no field 'a'"),
        (HEAD + "  %y = Concat(%x) {axis = 1, axis = 1} : float32[1] @n\n}", 3, 30, "the field 'axis' is given twice"),
        (HEAD + "  %y = Concat(%x) : float32[1] @n\n}", 3, 8, "Concat needs a field 'axis'"),
        (HEAD + "  %y = Concat(%x) {axis = ?} : float32[1] @n\n}", 3, 27, "expected a number"),
        (HEAD + "  %y = Concat(%x) {axis = 0x1} : float32[1] @n\n}", 3, 27, "expected a number"),
        (HEAD + "  %y = Concat(%x) {axis = true} : float32[1] @n\n}", 3, 20, "'axis' of Concat must be a whole number"),
        (
            HEAD + "  %y = Conv2d(%x) {kernel = 3}\n}",
            3,
            20,
            "must be [a whole number, a whole number]",
        ),
        (
            HEAD + "  %y = Conv2d(%x) {kernel = [3, 3, 3]}\n}",
            3,
            20,
            "must be [a whole number, a whole number]",
        ),
        (
            HEAD + '  %y = Reshape(%x) {shape = [1, "a"]}\n}',
            3,
            21,
            "must be a list, each a whole number",
        ),
        (HEAD + '  %y = Pool2d(%x) {kind = "min"}\n}', 3, 20, '\'kind\' of Pool2d must be "max" or "average"'),
        (HEAD + "  %y = Elementwise(%x) {kind = 3}\n}", 3, 25, "'kind' of Elementwise must be text in quotes"),
        (HEAD + '  %y = Elementwise(%x) {kind = "Clip", attributes = 3}\n}', 3, 40, "must be {NAME = VALUE, ...}"),
        (HEAD + "  %y = Gemm(%x) {trans_b = 1}\n}", 3, 18, "'trans_b' of Gemm must be true or false"),
        (
            HEAD + "  %y = MatMul(%x) : float32[1] @n {stage = 0.5}\n}",
            3,
            36,
            "'stage' of Placement must be a whole",
        ),
        (HEAD + "  %y = MatMul(%x) @n\n}", 3, 19, "expected ':'"),
        (HEAD + "  %y = MatMul(%x) : float32[1]\n}", 4, 1, "expected the node's name"),
        (HEAD + "  %y = MatMul(%x) : float32[1] @n on 7\n}", 3, 38, "expected a device"),
        (HEAD + "  = MatMul(%x) @n\n  = MatMul(%x) @n\n}", 4, 16, "a second node has the name @n"),
        (HEAD + "  %y = MatMul(%x) : float32[1] @n tags {a = 1}\n}", 3, 45, "expected a tag's text"),
        (HEAD + '  %"a\\q" = MatMul(%x) : float32[1] @n\n}', 3, 3, "is not a valid string"),
        (HEAD + '  %y = OnnxOp(%x) {op_type = b"é"} : float32[1] @n\n}', 3, 30, "ascii"),
        (HEAD + "  const %c = float32[2] [1.0]\n}", 3, 25, "2 elements expected, 1 given"),
        (HEAD + "  const %c = int8[1] [300]\n}", 3, 22, "300 does not fit int8"),
        (HEAD + f"  const %c = int64[1] [{2**70}]\n}}", 3, 23, "does not fit int64"),
        (HEAD + "  const %c = int8[1] [true]\n}", 3, 22, "True is not of type int8"),
        (HEAD + "  const %c = bool[1] [1]\n}", 3, 22, "1 is not of type bool"),
        (HEAD + "  const %c = float16[1] [0x12345]\n}", 3, 25, "0x12345 has more bits than float16"),
        (HEAD + "  const %c = float33[1] [1.0]\n}", 3, 25, "unknown element type 'float33'"),
        (HEAD + "  const %c = float32[*] [1.0]\n}", 3, 14, "a constant needs an element type and a shape"),
        (HEAD + "  const %c = float32[9] #00ff\n}", 3, 25, "is elided and its array is not given"),
        (HEAD + "}\n}", 4, 1, "expected the end of the text"),
    ],
)
def test_errors_name_line_and_column(text: str, line: int, column: int, what: str) -> None:
    with pytest.raises(PimflowError) as caught:
        parse_graph(text)
    assert f"line {line}, column {column}: " in str(caught.value)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_elided_constant_must_be_the_one_that_was_printed() -> None:
    text = print_graph(CHAIN)
    with pytest.raises(TextError, match=r"line 3, column 34: .*%w .*not given"):
        parse_graph(text)
    other = CHAIN.constants["w"].copy()
    other[0, 0, 0, 0] += 1
    for wrong in (other, CHAIN.constants["w"].reshape(-1), CHAIN.constants["w"].astype(np.float64)):
        with pytest.raises(TextError, match="is a different one"):
            parse_graph(text, {"w": wrong})


@settings(max_examples=200)
@given(st.data())
def test_damaged_text_is_a_text_error_and_never_a_crash(data: st.DataObject) -> None:
    text = print_graph(CHAIN)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 5)))
    piece = data.draw(st.text(st.sampled_from('%@"{}[]=:,*?#_b0x1.e-\\ \nautoy'), max_size=4))
    with contextlib.suppress(TextError):
        parse_graph(text[:start] + piece + text[stop:], CHAIN.constants)


# ---- comparison


def test_first_difference_finds_every_change() -> None:
    conv, clip = CHAIN.nodes
    other = dict(CHAIN.constants) | {"b": np.array([0.5, -1.5], np.float32)}
    fewer = {"w": CHAIN.constants["w"]}
    changes = {
        "name": CHAIN.replace(name="h"),
        "inputs": CHAIN.replace(inputs=("x", "b")),
        "outputs": CHAIN.replace(outputs=("y",)),
        "opset": CHAIN.replace(opset={"": 18}),
        "node 0 .*op": CHAIN.replace(nodes=(replace(conv, op=Conv2d((3, 3))), clip)),
        "node 0 .*inputs": CHAIN.replace(nodes=(replace(conv, inputs=("x", "w")), clip)),
        "node 0 .*placement": CHAIN.replace(nodes=(conv.placed(device="gpu"), clip)),
        "node 0 .*tags": CHAIN.replace(nodes=(replace(conv, tags=()), clip)),
        "node 1 .*name": CHAIN.replace(nodes=(conv, replace(clip, name="c"))),
        "node 1 .*outputs": CHAIN.replace(nodes=(conv, replace(clip, outputs=("z", "")))),
        "nodes: 2 and 1": CHAIN.replace(nodes=(conv,)),
        "value 'y'": CHAIN.replace(values=dict(CHAIN.values) | {"y": Value("y", (1, 2, 4, 5))}),
        "value 'new'": CHAIN.replace(values=dict(CHAIN.values) | {"new": Value("new", None)}),
        "constant 'b'": CHAIN.replace(constants=other),
        "constant 'b': only": CHAIN.replace(constants=fewer),
    }
    for pattern, changed in changes.items():
        found = first_difference(CHAIN, changed)
        assert found is not None
        assert re.match(pattern, found), (pattern, found)
    assert first_difference(CHAIN, CHAIN.replace()) is None


def test_equality_is_of_bits_and_types() -> None:
    def with_attribute(value: Any) -> Graph:
        return graph_of(Node(Elementwise("K", (("a", value),)), ("x",), ("y",), "n"))

    assert graphs_equal(with_attribute(float("nan")), with_attribute(float("nan")))
    assert not graphs_equal(with_attribute(0.0), with_attribute(-0.0))
    assert not graphs_equal(with_attribute(1), with_attribute(1.0))
    assert not graphs_equal(with_attribute((1, 2)), with_attribute((1, 2, 3)))
    zero, minus = (graph_of(constants={"c": np.array([value], np.float32)}) for value in (0.0, -0.0))
    assert not graphs_equal(zero, minus)
