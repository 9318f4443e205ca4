"""A model that does not run is not compiled; one that cannot be tried is compiled with a warning."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.compiled import original
from pimflow.errors import InputDataError, ModelError
from pimflow.frontend import load, load_model
from pimflow.ir import Array, Builder, Graph
from pimflow.onnxio import pieces
from pimflow.onnxio.export import ModelContent
from pimflow.onnxio.session import open_session
from pimflow.runtime.execute.original import run_original
from pimflow.verify import running
from pimflow.verify.running import UncheckedWarning, live_bytes, require_room, require_running, runs_if_it_loads
from support.calls import count_calls
from support.cli import Capture, assert_one_line, run
from support.onnx_models import model_of, single


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


UNRUNNABLE = {  # ONNX Runtime loads all of these
    "1-d channels": single("Conv", (1, 3, 8), [ones(4, 5, 3)]),
    "index": single("Gather", (2, 4), [np.array([5])]),
    "places": single("ScatterElements", (2, 4), [np.array([[7]]), ones(1, 1)]),
    "transposed channels": single("ConvTranspose", (1, 3, 8, 8), [ones(4, 5, 3, 3)]),
    "remainders": single("Mod", (4, 4), [ones(4, 4)]),
    "no window": single("Conv", (1, 3, 2, 2), [ones(4, 3, 3, 3)]),
    "no pixels": single("GlobalAveragePool", (1, 3, 0, 4)),
}


@pytest.mark.parametrize("what", list(UNRUNNABLE))
def test_models_that_do_not_run_are_not_compiled(what: str) -> None:
    model = UNRUNNABLE[what]
    model.graph.node[0].name = "n"
    with pytest.raises(ModelError) as caught:
        pimflow.compile(model, use_cache=False)
    message = str(caught.value)
    assert message.startswith(f"node 'n' ({model.graph.node[0].op_type}) cannot run: ")
    assert "it reads 'x' float32[" in message
    assert "--no-check" in message
    assert "/onnxruntime" not in message
    assert pimflow.compile(model, use_cache=False, check=False).graph.nodes


def pad_before_pool() -> onnx.ModelProto:
    """The optimiser fuses a Pad into a pool that then pads by more than its kernel; ONNX Runtime 1.32 does not."""
    nodes = [
        helper.make_node("Pad", ["x", "widths"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[2, 2]),
    ]
    return model_of(nodes, {"x": (1, 1, 4, 4)}, constants={"widths": np.array([0, 0, 2, 2, 0, 0, 2, 2])})


def test_models_that_run_only_without_the_optimiser_are_not_compiled() -> None:
    model = pad_before_pool()
    try:
        open_session(model.SerializeToString(), onnxruntime.SessionOptions(), "test")
    except ModelError:
        pass
    else:
        pytest.skip("this ONNX Runtime does not make the invalid fusion")
    with pytest.raises(ModelError) as caught:
        pimflow.compile(model, use_cache=False)
    message = str(caught.value)
    assert "Pad should be smaller than kernel" in message
    assert "the model runs as written, but not with" in message
    assert "--no-check" in message
    assert "/onnxruntime" not in message
    assert pimflow.compile(model, use_cache=False, check=False).graph.nodes


def of_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    return model


SOUND = {
    "convolution": single("Conv", (1, 3, 8, 8), [ones(4, 3, 3, 3)]),
    "product": single("MatMul", (2, 4), [ones(4, 3)]),
    "division": model_of([helper.make_node("Div", ["x", "x"], ["y"])], {"x": (4, 4)}),
    "pool": single("MaxPool", (1, 3, 8, 8), kernel_shape=[2, 2]),
    "turned": single("Transpose", (2, 3, 4), perm=[2, 0, 1]),
}
UNSOUND = {
    **UNRUNNABLE,
    "pad before pool": pad_before_pool(),
    "whole numbers": of_integers(model_of([helper.make_node("Div", ["x", "x"], ["y"])], {"x": (4, 4)})),
    "softmax": single("Softmax", (2, 4)),
}


@pytest.mark.parametrize("name", [*SOUND, *UNSOUND])
def test_a_model_without_doubtful_operators_is_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**SOUND, **UNSOUND}[name]
    graph = load_model(model)
    assert runs_if_it_loads(graph) == (name in SOUND)
    asked: list[Graph] = []
    monkeypatch.setattr(original, "check_original", lambda _, graph, *__: asked.append(graph))
    pimflow.compile(model, policy="gpu", use_cache=False)
    assert len(asked) == (name in UNSOUND)
    if name in SOUND:
        assert require_running(model, graph, 0) == ""
        monkeypatch.setattr(running, "MAX_RUN_BYTES", 10)
        assert not runs_if_it_loads(graph)


def test_a_model_known_to_run_is_not_even_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(SOUND["convolution"], tmp_path / "model.onnx")
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    loaded = count_calls(monkeypatch, load, "_require_runnable")
    for count in (1, 1):
        pimflow.compile(tmp_path / "model.onnx", policy="gpu")
        assert len(loaded) == count


def test_a_written_model_that_does_not_run_is_the_fault_of_an_original_that_does_not_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although nothing in it is doubtful."""
    compiled = pimflow.compile(SOUND["convolution"], policy="gpu", use_cache=False)
    monkeypatch.setattr(running, "_run", lambda *_: ModelError("while running Conv node. Name:'n': no kernel"))
    with pytest.raises(ModelError, match="no kernel") as caught:
        compiled.save(tmp_path / "out")
    assert "correct the model, or compile it anyway with --no-check" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_on_the_command_line_it_is_a_one_line_error(tmp_path: Path, capsys: Capture) -> None:
    onnx.save(UNRUNNABLE["index"], tmp_path / "model.onnx")
    out = tmp_path / "out"
    assert run("compile", tmp_path / "model.onnx", "-o", out, "--no-cache") == 2
    assert_one_line(capsys, "(Gather) cannot run", "--no-check")
    assert not out.exists()
    assert run("compile", tmp_path / "model.onnx", "-o", out, "--no-cache", "--no-check") == 0
    assert out.is_dir()


def test_the_model_that_is_written_is_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = single("NoSuchOperator", (4, 4))
    monkeypatch.setattr("pimflow.compiled.writing.save_onnx", lambda graph, path: onnx.save(broken, path))
    with pytest.raises(ModelError, match="the compiled model does not run: ") as caught:
        pimflow.compile("zoo:toy", policy="gpu", use_cache=False).save(tmp_path / "out")
    assert "NoSuchOperator" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_float_that_a_model_runs_on_is_zero() -> None:
    """The places of what is not zero, of which there are as many as elements."""
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Reshape", ["places", "s"], ["y"])]
    model = model_of(nodes, {"x": (50, 60)}, constants={"s": np.array([2, 3000])})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pimflow.compile(model, policy="gpu", use_cache=False).graph.nodes


def reshaped_by_an_input() -> onnx.ModelProto:
    model = model_of([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (2, 6), "s": (3,)})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    return model


def resized_by_an_input() -> onnx.ModelProto:
    return model_of([helper.make_node("Resize", ["x", "", "s"], ["y"])], {"x": (1, 1, 2, 2), "s": (4,)})


def test_random_scales_do_not_disqualify_a_model() -> None:
    with pytest.warns(UncheckedWarning, match="Scale value should be greater than 0"):
        assert pimflow.compile(resized_by_an_input(), policy="gpu", use_cache=False).graph.nodes


def test_unsuitable_random_inputs_do_not_disqualify_a_model() -> None:
    """The sizes are drawn from 0 and 1, and 12 elements do not fit."""
    with pytest.warns(UncheckedWarning, match=r"not known whether the model runs: node .* \(Reshape\) cannot run"):
        assert pimflow.compile(reshaped_by_an_input(), policy="gpu", use_cache=False).graph.nodes


def test_an_input_that_chooses_a_branch_may_be_fixed() -> None:
    """The branch for rates of 0 and 1 does not run, as for silero-vad's sampling rate."""
    branches = [
        helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{name}_s"], value_ints=[size]),
                helper.make_node("Reshape", ["x", f"{name}_s"], [f"{name}_y"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, size in (("then", 12), ("else", 5))
    ]
    nodes = [
        helper.make_node("Constant", [], ["high"], value_int=8000),
        helper.make_node("Greater", ["rate", "high"], ["is_high"]),
        helper.make_node("If", ["is_high"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = model_of(nodes, {"x": (3, 4), "rate": ()})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.warns(UncheckedWarning, match=r"`--fix rate=VALUE` makes an input a constant"):
        compiled = pimflow.compile(model, policy="gpu", use_cache=False)
    with pytest.raises(ModelError, match=r"give some with --inputs, or compile it with --fix rate=VALUE"):
        compiled.verify()
    assert pimflow.compile(model, fixed={"rate": 16000}, policy="gpu", use_cache=False).verify().passed


def test_verify_asks_for_inputs_where_random_ones_do_not_run() -> None:
    with pytest.warns(UncheckedWarning):
        compiled = pimflow.compile(reshaped_by_an_input(), policy="gpu", use_cache=False)
    with pytest.raises(ModelError, match="give some with --inputs"):
        compiled.verify()


def test_models_too_large_to_run_are_only_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("Relu", (4, 4))
    graph = load_model(model)
    assert require_running(model, graph, 0) == ""
    monkeypatch.setattr(running, "MAX_RUN_BYTES", 100)
    assert "its activations take" in require_running(model, graph, 0)
    monkeypatch.setattr(running, "MAX_ADDRESSABLE_BYTES", 100)
    with pytest.raises(ModelError, match="the model cannot run: its activations take"):
        require_running(model, graph, 0)
    monkeypatch.setattr(running, "MAX_ADDRESSABLE_BYTES", 2**48)
    with pytest.raises(ModelError):
        require_running(single("NoSuchOperator", (4, 4)), graph, 0)


SQUARE = helper.make_node("MatMul", ["x", "x"], ["z"])


def heavy(*nodes: onnx.NodeProto, integers: str = "", floats: str = "") -> onnx.ModelProto:
    """A model of 64 multiply-accumulates and other nodes, with further inputs of these names."""
    inputs = {"x": (4, 4), **dict.fromkeys(floats, (2,))}
    model = model_of([SQUARE, *nodes], inputs, ["y" if nodes else "z"])
    whole = onnx.TensorProto.INT64
    model.graph.input.extend(helper.make_tensor_value_info(name, whole, (4,)) for name in integers)
    return model


def to_integers(source: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], to=onnx.TensorProto.INT64)


HEAVY: dict[str, tuple[onnx.ModelProto, str]] = {
    "no other data": (heavy(), "load"),
    "sizes from shapes": (
        heavy(
            helper.make_node("Shape", ["z"], ["n"]),
            helper.make_node("Add", ["n", "n"], ["nn"]),
            helper.make_node("Resize", ["z", "", "", "nn"], ["y"]),
        ),
        "load",
    ),
    "scales from data": (heavy(helper.make_node("Resize", ["z", "", "s"], ["y"]), floats="s"), "run"),
    "drawn rows": (heavy(helper.make_node("Gather", ["z", "i"], ["y"]), integers="i"), "load"),
    "computed rows": (heavy(to_integers("z", "i"), helper.make_node("Gather", ["z", "i"], ["y"])), "run"),
    "rows by chance": (
        heavy(
            helper.make_node("RandomUniform", [], ["u"], shape=[3]),
            to_integers("u", "i"),
            helper.make_node("Gather", ["z", "i"], ["y"]),
        ),
        "run",
    ),
    "a mask": (
        heavy(
            to_integers("z", "n"),
            helper.make_node("Transpose", ["m"], ["t"]),
            helper.make_node("Greater", ["n", "t"], ["c"]),
            helper.make_node("Where", ["c", "z", "x"], ["y"]),
            integers="m",
        ),
        "load",
    ),
    "whole divisors": (
        heavy(
            to_integers("z", "n"),
            helper.make_node("Div", ["m", "n"], ["q"]),
            helper.make_node("Cast", ["q"], ["y"], to=onnx.TensorProto.FLOAT),
            integers="m",
        ),
        "run",
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_models_that_cannot_fail_are_only_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = HEAVY[name]
    graph = load_model(model)
    ran: list[str] = []
    monkeypatch.setattr(running, "_run", lambda *_: ran.append("run"))
    monkeypatch.setattr(running, "load_original", lambda *_: ran.append("load"))
    for most in (10, 64, 63):
        monkeypatch.setattr(running, "MAX_RUN_MACS", most)
        assert require_running("", graph, 0) == ""
    assert ran == [how, "run", how]


@pytest.mark.parametrize("name", ["sizes from shapes", "scales from data"])
def test_a_failure_that_no_data_decide_counts_against_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = HEAVY[name]
    failure = ModelError("Non-zero status code returned while running Resize node. Name:'' Status Message: too large")
    monkeypatch.setattr(running, "_run", lambda *_: failure)
    if how == "load":
        with pytest.raises(ModelError, match=r"\(Resize\) cannot run: too large; it reads 'z' float32\[4, 4\]"):
            require_running("", load_model(model), 0)
    else:
        assert "(Resize) cannot run: too large" in require_running("", load_model(model), 0)


def test_models_with_very_many_operands_run_unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of([helper.make_node("Add", ["x", "x"], ["y"])], {"x": (4, 4)})
    graph, optimised = load_model(model), []

    def run(*_: object, optimise: bool = True, **__: object) -> None:
        optimised.append(optimise)

    monkeypatch.setattr(running, "run_original", run)
    for most in (2, 1):
        monkeypatch.setattr(running, "MAX_OPTIMISED_OPERANDS", most)
        assert require_running(model, graph, 0) == ""
    assert optimised == [True, False]


@pytest.mark.parametrize(("index", "wholes"), [(3, 0), (4, 1)])
def test_models_with_very_many_operands_run_in_pieces(monkeypatch: pytest.MonkeyPatch, index: int, wholes: int) -> None:
    """The whole model is run only if a piece does not run, so that messages stay those about the whole."""
    monkeypatch.setattr(running, "MAX_OPTIMISED_OPERANDS", 0)
    monkeypatch.setattr(pieces, "PIECE_OPERANDS", 1)
    ran: list[object] = []

    def whole(content: ModelContent, *arguments: Any, **options: Any) -> dict[str, Any]:
        ran.append(content)
        return run_original(content, *arguments, **options)

    monkeypatch.setattr(running, "run_original", whole)
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Gather", ["a", "i"], ["y"], name="n")]
    model = model_of(nodes, {"x": (4, 4)}, constants={"i": np.array([index])})
    with nullcontext() if index < 4 else pytest.raises(ModelError, match=r"node 'n' .+ cannot run: indices element"):
        require_running(model, load_model(single("Relu", (4, 4))), 0)
    assert len(ran) == wholes


def test_models_with_very_many_operands_are_refused_if_they_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("NoSuchOperator", (4, 4))
    monkeypatch.setattr(running, "MAX_OPTIMISED_OPERANDS", 0)
    with pytest.raises(ModelError, match="NoSuchOperator"):
        require_running(model, load_model(single("Relu", (4, 4))), 0)


def test_an_endless_run_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [info("i", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("a", 1, (2,))],
        [info("on", TensorProto.BOOL, ()), info("b", 1, (2,))],
    )
    node = helper.make_node("Loop", ["", "p", "x"], ["y"], body=body)
    model = model_of([node], {"x": (2,)}, constants={"p": np.array(True)})
    monkeypatch.setattr(running, "MAX_RUN_S", 0.2)
    assert "terminate" in require_running(model, load_model(model), 0)


def test_live_bytes() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=0),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("ReduceMax", ["c"], ["y"], keepdims=1),
    ]
    graph = load_model(model_of(nodes, {"x": (10, 10)}))
    assert live_bytes(graph) == 4 * (200 + 200)


def test_a_model_that_runs_is_compiled_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pimflow.compile("zoo:toy", policy="gpu", use_cache=False).graph.nodes


def test_models_too_large_for_memory_are_not_run() -> None:
    build = Builder()
    graph = build.graph(build.relu(build.input(1 << 30, 1 << 10)))
    with pytest.raises(InputDataError, match=r"takes 8\.0 TiB, but"):
        require_room(graph)


def test_an_arena_run_needs_memory_for_arena_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pimflow.verify.running.available_bytes", lambda: 3 << 20)
    build = Builder()
    graph = build.graph(build.relu(build.input(1 << 10, 1 << 8)))  # takes 1 MiB, and makes another
    require_room(graph, 2 << 20)
    with pytest.raises(InputDataError, match=r"takes 3\.0 MiB, but"):
        require_room(graph, (2 << 20) + 64)
