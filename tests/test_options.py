"""Options are defined once: keywords, signature, docstring, command line, config.json and docs follow from fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pimflow
from pimflow.cli.main import build_parser
from pimflow.cli.options import keywords_of
from pimflow.data import decode, encode
from pimflow.errors import OptionError
from pimflow.options import CLI_TIME_BUDGET_S, Debug, OptionKeywords, Options, option_texts
from pimflow.sparse import Graph as Adjacency
from pimflow.targets import load_target

NAMES = tuple(field.name for field in fields(Options))
DOCS = Path(__file__).parent.parent / "docs" / "cli.md"


def test_the_keywords_that_type_checkers_see_are_the_fields() -> None:
    assert tuple(OptionKeywords.__annotations__) == NAMES
    assert OptionKeywords.__total__ is False


def test_the_signature_and_the_docstring_of_compile_name_every_option() -> None:
    parameters = inspect.signature(pimflow.compile).parameters
    assert tuple(parameters) == ("model", "progress", *NAMES)
    for field in fields(Options):
        parameter = parameters[field.name]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default == (None if field.default is MISSING else field.default)
        assert parameter.annotation == OptionKeywords.__annotations__[field.name].__forward_arg__
        assert f"\n    {field.name}: {option_texts()[field.name].help}." in (inspect.getdoc(pimflow.compile) or "")


@pytest.mark.parametrize(
    ("function", "without"),
    [(pimflow.inspect, ()), (pimflow.train, ()), (pimflow.front, ("objective",)), (pimflow.compare, ("policy",))],
    ids=["inspect", "train", "front", "compare"],
)
def test_functions_spell_out_the_options_that_they_take(
    function: Callable[..., object], without: tuple[str, ...]
) -> None:
    parameters, text = inspect.signature(function).parameters, inspect.getdoc(function) or ""
    assert [name for name in parameters if name in NAMES] == [name for name in NAMES if name not in without]
    told = [f"    {name}: {option_texts()[name].help}." for name in NAMES if name not in without]
    assert "\n".join(["", *told, "", "Returns:"]) in text  # nothing of the replaced line is left


def test_every_option_is_described() -> None:
    for text in (*option_texts().values(), *option_texts(Debug).values()):
        assert text.help
        assert text.flag == "" or text.flag.startswith("--")


def test_options_of_callers_are_converted(tmp_path: Path) -> None:
    asked = Options.of(
        target="hbm-pim",
        shapes={"x": (1, 3), "N": 2},
        stages=[3, 2],
        grid=np.int32(5),
        time_budget_s=1,
        disabled_passes=["fold-constants"],
        profile=tmp_path / "kernels.csv",
        debug=None,
    )
    assert asked.target == load_target("hbm-pim")
    assert (asked.shapes, asked.stages, asked.grid) == ({"x": (1, 3), "N": 2}, (3, 2), 5)
    assert (asked.time_budget_s, type(asked.time_budget_s)) == (1.0, float)
    assert (asked.disabled_passes, asked.profile) == (("fold-constants",), str(tmp_path / "kernels.csv"))
    assert asked.debug == Debug()
    assert Options.of() == Options()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"grid": 60}, "'grid' is 60; it must be between 1 and 50"),
        ({"grid": 2.5}, "'grid' is 2.5; it must be a whole number"),
        ({"stages": [2, 1]}, r"'stages\[1\]' is 1; it must be between 2 and 64"),
        ({"stages": 3}, "'stages' is 3; it must be a list"),
        ({"time_budget_s": -1}, "'time_budget_s' is -1; it must be 0 or more"),
        ({"seed": -1}, "'seed' is -1; it must be 0 or more"),
        ({"policy": 3}, "'policy' is 3; it must be text"),
        ({"objective": "speed"}, "'objective' is 'speed'"),
        ({"shapes": {"x": "1x3"}}, "'shapes.x' is '1x3'; it must be a list or a number"),
        ({"disabled_passes": "fold-constants"}, "'disabled_passes' is 'fold-constants'; it must be a list"),
    ],
)
def test_a_value_that_does_not_fit_names_its_option(option: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options.of(**option)


def test_options_are_checked_however_they_are_made() -> None:
    with pytest.raises(OptionError, match="'grid' is 60"):
        Options(grid=60)


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="polcy"):
        pimflow.compile("zoo:toy", polcy="gpu")  # type: ignore[call-arg]


def test_an_output_folder_stores_options_that_affect_the_result() -> None:
    asked = Options(policy="md-dp", shapes={"x": (1, 3), "N": 2}, grid=5, stages=(2, 3), seed=7, profile="k.csv")
    asked = replace(asked, fixed={"r": 2, "s": (True, 0.5)})
    kept = encode(asked)
    assert set(NAMES) - set(kept) == {"target", "graph", "use_cache", "check", "jobs", "debug"}
    assert decode(Options, kept) == asked


def asked(line: list[str]) -> Options:
    return Options.of(**keywords_of(build_parser().parse_args(line)))


def test_the_command_line_has_every_flag_and_reads_it(tmp_path: Path) -> None:
    graph = tmp_path / "graph.npz"
    Adjacency.from_edge_index([[0, 1], [1, 1]]).save(graph)
    line = (
        "compile m.onnx --target hbm-pim --policy pim --objective energy --shape x:1x3 --shape N=2 --fix r=2 "
        f"--graph-as-input --graph {graph} --relations never --tables aligned --spill offload --grid 5 --stages 2,3 "
        "--convolutions im2win --workspace 64 --time-budget 1.5 --disable-pass fold-constants --seed 7 --no-cache "
        "--profile k.csv --no-check --jobs 2 "
        "--verify-each --print-ir-before a --print-ir-before b --print-ir-after c --print-ir-after-all "
        "--print-pass-times"
    )
    flags = {text.flag for text in (*option_texts().values(), *option_texts(Debug).values()) if text.flag}
    assert flags <= set(line.split())
    expected = Options(
        target=load_target("hbm-pim"),
        policy="pim",
        objective="energy",
        fixed={"r": 2},
        shapes={"x": (1, 3), "N": 2},
        graph_as_input=True,
        relations="never",
        tables="aligned",
        spill="offload",
        grid=5,
        stages=(2, 3),
        time_budget_s=1.5,
        disabled_passes=("fold-constants",),
        convolutions="im2win",
        workspace_mib=64.0,
        seed=7,
        use_cache=False,
        profile="k.csv",
        check=False,
        jobs=2,
        debug=Debug(("a", "b"), ("c",), True, True, True),
    )
    found = asked(line.split())
    assert found.graph.num_edges == 2
    expected = replace(expected, graph=found.graph)
    assert found == expected
    for field in fields(Options):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        assert getattr(expected, field.name) != default, f"{field.name} is not tried"


def test_without_arguments_the_defaults_apply() -> None:
    """Except for the time limit of the search, which the command line sets so that nobody waits too long."""
    for verb in ("compile", "compare"):
        assert asked([verb, "m.onnx"]) == Options(time_budget_s=CLI_TIME_BUDGET_S)
        assert asked([verb, "m.onnx", "--time-budget", "none"]) == Options()


def options_table() -> str:
    """The options table of docs/cli.md."""
    lines = ["| option | keyword | default | meaning |", "|---|---|---|---|"]
    for name, text in option_texts().items():
        flag = f"`{text.flag} {text.metavar}`".replace(" `", "`").replace("|", r"\|") if text.flag else ""
        default = inspect.signature(pimflow.compile).parameters[name].default
        shown = "" if default in (None, ()) else f"`{default}`"
        shown = shown if text.cli_default is None else f"{text.cli_default:g} on the command line"
        lines.append(f"| {flag} | `{name}` | {shown} | {text.help} |")
    for name, text in option_texts(Debug).items():
        flag = f"`{text.flag} {text.metavar}`".replace(" `", "`") if text.flag else ""
        lines.append(f"| {flag} | `debug.{name}` | | {text.help} |")
    return "\n".join(lines)


def test_the_docs_have_the_table() -> None:
    shown = re.search(r"^\| option .*?(?=\n\n)", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert shown.group() == options_table(), "put the table that this test makes into docs/cli.md"


def test_numbers_that_inputs_are_fixed_to_keep_their_types() -> None:
    """1, 1.0 and true are equal, but not the same to a model."""
    for numbers in ((1, 1.0, True), (True, 1.0, 1), (0.0, False, 0)):
        assert repr(Options(fixed={"x": numbers}).fixed["x"]) == repr(numbers)
