"""`pimflow opt`: passes over models and texts, and the errors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest

import pimflow
from pimflow.ir import Builder, Graph, parse_graph, print_graph
from pimflow.onnxio import save_onnx
from pimflow.passes import PASSES, MdDpSplit, RemoveIdentity
from support.cli import Capture, assert_one_line, document, run
from support.values import assert_same_values


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions with a dead branch."""
    build = Builder("net")
    y = build.relu(build.conv(build.input(1, 3, 8, 8), 8, 3, pad=1, name="conv1"), name="relu")
    build.tanh(y, name="dead")
    graph = build.graph(build.conv(y, 4, name="conv2"))
    save_onnx(graph, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def printed(capsys: Capture, *arguments: object) -> str:
    """The output of `pimflow opt ARGUMENTS` on stdout."""
    capsys.readouterr()
    assert run("opt", *arguments) == 0
    return capsys.readouterr().out


def constants_of(model: Path) -> Graph:
    return pimflow.opt(model, "").graph


def test_a_model_is_rewritten_and_printed(model: Path, capsys: Capture) -> None:
    original = constants_of(model)
    text = printed(capsys, model, "-p", "remove-dead-code,md-dp-split{node=conv1 gpu_rows=3 followers=[relu]}")
    graph = parse_graph(text, original.constants)
    assert {"conv1_gpu", "conv1_pim", "relu_gpu", "relu_pim", "conv2"} <= graph.node_by_name.keys()
    assert "dead" not in graph.node_by_name
    assert_same_values(original, graph)


def test_without_passes_the_graph_is_printed_as_it_is(model: Path, capsys: Capture) -> None:
    assert printed(capsys, model) == print_graph(constants_of(model))


def test_texts_are_written_with_a_file_of_constants(model: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "clean.pimir"
    assert printed(capsys, model, "-p", "cleanup", "-o", out) == f"{out}\n"
    with np.load(tmp_path / "clean.pimir.npz") as arrays:
        assert set(arrays.files) == {name for name, a in constants_of(model).constants.items() if a.size > 16}
    again = pimflow.opt(out, "").graph
    assert print_graph(again) == out.read_text()
    assert_same_values(constants_of(model), again)


def on_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "ascii"))


def test_inline_texts_go_through_pipes(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(capsys, model, "-p", "fuse-epilogues", "--inline")
    on_stdin(monkeypatch, text.encode())
    assert printed(capsys, "-", "-p", "remove-dead-code", "--inline") == text.replace(
        next(line + "\n" for line in text.splitlines() if "@dead" in line), ""
    )


def test_constants_of_a_text_on_stdin(
    model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("opt", model, "-o", tmp_path / "net.pimir") == 0
    text = (tmp_path / "net.pimir").read_text()
    on_stdin(monkeypatch, text.encode())
    assert printed(capsys, "-", "--constants", tmp_path / "net.pimir.npz") == text
    on_stdin(monkeypatch, text.encode())
    assert run("opt", "-") == 2
    assert_one_line(capsys, "stdin: line 3", "is elided and its array is not given; give the arrays")


def test_onnx_out_keeps_placements(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "split.onnx"
    passes = "remove-dead-code,md-dp-split{node=conv1 gpu_rows=3},movement-elimination"
    assert run("opt", model, "-p", passes, "-o", out) == 0
    onnx.checker.check_model(str(out), full_check=True)
    assert pimflow.opt(out, "").graph.nodes == pimflow.opt(model, passes).graph.nodes


def test_nothing_is_overwritten_without_being_asked(model: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.pimir"
    assert run("opt", model, "-o", out) == 0
    before = out.read_bytes()
    assert run("opt", model, "-p", "cleanup", "-o", out) == 2
    capsys.readouterr()
    (tmp_path / "out.pimir").unlink()
    assert run("opt", model, "-p", "cleanup", "-o", out) == 2
    assert_one_line(capsys, "out.pimir.npz exists")
    assert run("opt", model, "-p", "cleanup", "-o", out, "--overwrite") == 0
    assert out.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "out.pimir", "out.pimir.npz"]


def test_debugging(model: Path, capsys: Capture) -> None:
    debugging = ("--verify-each", "--print-pass-times", "--print-ir-before", "remove-identity", "--disable-pass")
    capsys.readouterr()
    assert run("opt", model, "-p", "cleanup", "-v", *debugging, "remove-dead-code") == 0
    shown = capsys.readouterr().err
    assert "// IR before remove-identity" in shown
    assert "ms total" in " ".join(shown.split())
    assert "fuse-epilogues: changed" in shown
    assert "remove-dead-code" not in shown


def test_notes_say_why_a_pass_left_something(tmp_path: Path, capsys: Capture) -> None:
    text = tmp_path / "net.pimir"
    text.write_text("""graph @g opset {"" = 17} {
  input %x : float32[4, 6]
  %y = Transpose(%x) {perm = [1, 0]} : float32[6, 4] @turn
  %z = Elementwise(%y) {kind = "Relu"} : float32[6, 4] @relu
  output %z
}""")
    assert run("opt", text, "-p", "movement-elimination", "-v") == 0
    shown = capsys.readouterr().err
    assert shown == "movement-elimination: changed\n  turn: reorders the elements for readers that need them in order\n"


def test_every_pass_is_listed_with_its_options(capsys: Capture) -> None:
    text = printed(capsys, "--list")
    listed = {item["name"]: item for item in document(capsys, "opt", "--list")["passes"]}
    assert listed.keys() == set(PASSES)
    for name, item in listed.items():
        assert f"{name}\n    {item['help'][:60]}" in text
        assert len(item["help"].split()) > 4, name
        for option in item["options"]:
            assert len(option["help"].split()) > 2, (name, option)
            assert f"    {option['name']}  " in text
    rows = next(option for option in listed["md-dp-split"]["options"] if option["name"] == "gpu_rows")
    assert rows == {
        "name": "gpu_rows", "takes": "whole number", "default": "",
        "help": "output rows that the host computes; neither none nor all.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("there is no MODEL",)),
        (("NET", "--json"), ("--json is for --list",)),
        (("NET", "-p", "md-dp-splt"), ("unknown pass 'md-dp-splt'", "did you mean 'md-dp-split'?")),
        (
            ("NET", "-p", "md-dp-split{node=conv gpu_rows=3}"),
            ("no node 'conv' in graph 'net'", "did you mean 'conv2'?"),
        ),
        (("NET", "-p", "md-dp-split{node=conv1 gpu_rows=8}"), ("'md-dp-split': conv1: 8 of 8 rows",)),
        (("NET", "-p", "fold-constants", "--disable-pass", "fold"), ("unknown pass 'fold'", "fold-constants")),
        (("NET", "-o", "out.txt"), ("out.txt is neither ONNX nor text", ".pimir")),
        (("NET", "--constants", "c.npz"), ("an ONNX model has its own constants",)),
        (("none.pimir",), ("cannot read none.pimir",)),
        (("bad.pimir",), ("bad.pimir: line 1, column 1: expected 'graph'",)),
        (("unsound.pimir",), ("unsound.pimir is not a valid graph",)),
        (("binary.pimir",), ("binary.pimir is not text",)),
        (("unsound.pimir", "--shape", "N=1"), ("the shapes of a graph in text form are in the text",)),
        (("unsound.pimir", "--constants", "bad.pimir"), ("bad.pimir cannot be read as an npz file",)),
    ],
)
def test_mistakes_are_one_line_errors(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    model: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pimir").write_text("graf @g")
    Path("binary.pimir").write_bytes(b"\xff\xfe")
    Path("unsound.pimir").write_text("""graph @g opset {"" = 17} {
  input %x : float32[4]
  %y = Elementwise(%x) {kind = "Relu"} : float32[5] @relu
  output %y
}""")
    assert run("opt", *(str(model) if argument == "NET" else argument for argument in arguments)) == 2
    assert_one_line(capsys, *words)


def test_the_function_takes_graphs_and_passes(model: Path) -> None:
    build = Builder("net")
    graph = build.graph(build.onnx("Identity", build.conv(build.input(1, 3, 8, 8), 4, name="conv")))
    result = pimflow.opt(graph, (RemoveIdentity(), MdDpSplit("conv", 2)))
    assert [(record.name, record.changed) for record in result.records] == [
        ("remove-identity", True), ("md-dp-split", True)
    ]  # fmt: skip
    assert_same_values(graph, result.graph)
