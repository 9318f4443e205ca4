"""Unknown names and numbers of things: the same wording everywhere."""

from pathlib import Path

import pytest

from pimflow.cli import main
from pimflow.errors import OptionError, TargetError, choice, choose_one, counted, did_you_mean, printable
from pimflow.ir import Builder
from pimflow.onnxio import save_onnx
from pimflow.search.policy import find_policy
from pimflow.targets import load_target, override

COLOURS = ("red", "green", "blue")


def test_a_choice_ignores_case_and_blanks() -> None:
    assert choice("colour", " Green ", COLOURS) == "green"


def test_a_choice_that_does_not_exist_names_the_nearest_and_all() -> None:
    with pytest.raises(OptionError) as caught:
        choice("colour", "Gren", COLOURS)
    assert str(caught.value) == "unknown colour 'Gren'; did you mean 'green'? choose one of red, green, blue"


def test_the_class_of_the_error_is_the_callers() -> None:
    with pytest.raises(TargetError):
        choice("colour", "mauve", COLOURS, TargetError)


def test_without_a_close_name_there_is_no_suggestion() -> None:
    assert did_you_mean("xyz", COLOURS) == ""
    assert choose_one("xyz", COLOURS) == "choose one of red, green, blue"


def test_several_near_names_are_joined() -> None:
    assert did_you_mean("conv", ("conv1", "conv2", "relu"), most=3) == "did you mean 'conv2' or 'conv1'?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compil"], "unknown verb 'compil'; did you mean 'compile'? choose one of cache, calibrate, compare, compile"),
        (["targets", "lst"], "unknown action 'lst'; did you mean 'list'? choose one of list, show"),
        (
            ["compile", "m.onnx", "--timing", "stric"],
            "unknown timing profile 'stric'; did you mean 'strict'? choose one of",
        ),
        (["compile", "zoo:toy", "--policy", "atuo"], "unknown policy 'atuo'; did you mean 'auto'? choose one of gpu, "),
        (["layer", "--conv", "oq=1"], "unknown --conv key 'oq'; choose one of ic, oc, "),
        (["targets", "show", "pimflo"], "unknown target 'pimflo'; did you mean 'pimflow'? choose one of a100-ssd, "),
    ],
)
def test_the_command_line_uses_the_same_wording(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"pimflow: error: {message}")


def test_one_thing_has_no_plural() -> None:
    assert [counted(count, "record") for count in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]
    assert [counted(count, "vertex", "vertices") for count in (1, 2)] == ["1 vertex", "2 vertices"]


def test_a_model_of_one_node_is_told_in_the_singular(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = Builder()
    graph = build.graph(build.relu(build.matmul(build.input(2, 8), 16)))
    save_onnx(graph, tmp_path / "one.onnx")
    assert main(["compile", str(tmp_path / "one.onnx"), "-o", str(tmp_path / "out")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(1 node that costs nothing, fused or free, is not shown; -v shows them)" in text
    assert main(["diff", str(tmp_path / "out"), str(tmp_path / "out")]) == 0
    assert "all 2 nodes are alike" in capsys.readouterr().out


def test_an_alias_is_a_name() -> None:
    assert find_policy("MDDP") is find_policy("md-dp")


def test_an_override_is_a_choice() -> None:
    target = load_target("pimflow")
    assert override(target, timing="STRICT").pim.timing.default == "strict"
    with pytest.raises(OptionError, match="unknown timing profile 'loose'; choose one of artifact, strict"):
        override(target, timing="loose")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv/übung 卷积", "conv/übung 卷积"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("over\rwritten\nline", "over\\rwritten\\nline"),
        ("right\u202eto left", "right\\u202eto left"),
        ("half\udc80", "half\\udc80"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_a_terminal_obeys_no_text(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text, keep="\n") == shown.replace("\\n", "\n")
    assert str(OptionError(text.replace("\r", "").replace("\n", ""), "hint \x1b[2J")).isprintable()
