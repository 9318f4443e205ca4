"""Functions that start from a model, called from Python: they return the verbs' results as rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.ir import OnDevice
from support.cli import Capture, document
from support.wrong_types import assert_type_error


@pytest.fixture(scope="module")
def compiled() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)


def test_compare_matches_the_verb(capsys: Capture) -> None:
    found = pimflow.compare("zoo:toy", policies=["gpu", "MDDP"], grid=20, use_cache=False)
    told = document(capsys, "compare", "zoo:toy", "--policies", "gpu,mddp", "--grid", "20", "--no-cache")
    for policy in (*told["policies"], *(data := found.as_json())["policies"]):
        del policy["search_seconds"]
    assert {key: told[key] for key in data} == data
    frame = pd.DataFrame(found)
    assert frame["policy"].tolist() == ["gpu", "md-dp"]
    assert frame["speedup"].tolist() == [result.speedup for result in found.policies]
    assert frame["energy_parts_mj.static.board"].notna().all()


def test_inspect_matches_the_verb(capsys: Capture) -> None:
    found = pimflow.inspect("zoo:toy", target="hbm-pim")
    told = document(capsys, "inspect", "zoo:toy", "--target", "hbm-pim")
    assert {key: told[key] for key in found.as_json()} == found.as_json()
    frame = pd.DataFrame(found)
    assert frame["name"].tolist() == [node.name for node in found.nodes]
    assert frame["can_pim"].sum() == sum(node.leaves_host for node in found.nodes) > 0


def test_profile_gives_the_rows_of_its_file() -> None:
    told: list[str] = []
    found = pimflow.profile("zoo:toy", runs=1, warmup=0, progress=told.append)
    frame = pd.DataFrame(found)
    header, *lines = found.csv().splitlines()
    assert list(frame.columns) == header.split(",")
    assert len(frame) == len(lines) == len(found.kernels)
    assert frame["time_us"].tolist() == [kernel.time_us for kernel in found.kernels]
    assert told[-1] == "timing kernels: 5 of 5"


def test_progress_covers_reports_and_every_file(tmp_path: Path) -> None:
    told: list[str] = []
    compiled = pimflow.compile("zoo:toy", use_cache=False, progress=told.append)
    assert f"report: 0 of {len(compiled.report.nodes)} nodes" in told
    told.clear()
    folder = compiled.save(tmp_path / "out", progress=told.append)
    written = {line.removeprefix("writing ") for line in told if line.startswith("writing ")}
    small = {"config.json", "manifest.json", "target.toml"}
    assert {path.name for path in folder.iterdir()} - written == small
    assert told[-1] == "checking what was written"


def test_a_compiled_models_nodes_are_rows(compiled: pimflow.CompiledModel) -> None:
    frame = pd.DataFrame(compiled.records())
    assert frame["name"].tolist() == [row.name for row in compiled.report.nodes]
    assert frame["energy_mj"].sum() == pytest.approx(compiled.report.result.energy_mj)
    assert frame.map(lambda value: not isinstance(value, (dict, list))).all(axis=None)


def test_a_verifications_outputs_are_rows(compiled: pimflow.CompiledModel) -> None:
    found = compiled.verify()
    frame = pd.DataFrame(found.records())
    assert frame["name"].tolist() == ["logits"]
    assert frame["passed"].all()
    assert frame["max_abs_err"].tolist() == [found.max_abs_err]


def test_large_objects_have_a_short_repr(compiled: pimflow.CompiledModel) -> None:
    found = pimflow.opt("zoo:toy", "cleanup")
    for item in (compiled, compiled.graph, compiled.plan, compiled.machine.target, found, pimflow.inspect("zoo:toy")):
        assert len(repr(item)) < 300
        assert repr(item).isprintable()
    results = (compiled.report, compiled.timeline, compiled.memory, compiled.verify())
    assert [repr(item).partition(" ")[0] for item in results] == [f"<{type(item).__name__}" for item in results]
    assert max(len(repr(item)) for item in results) < 200
    assert all(repr(item).isprintable() for item in results)
    assert " passed: 1 output, largest relative error " in repr(results[-1])
    changed = pimflow.override("pimflow", {"name": "a\nb\x1b", "description": "<b>"})
    assert repr(changed).isprintable()
    assert "&lt;b&gt;" in changed._repr_html_()


def test_notebooks_show_a_small_table_and_charts(compiled: pimflow.CompiledModel) -> None:
    page, _, charts = compiled._repr_html_().partition("</table>")
    assert page.startswith("<table>")
    assert len(page) < 5000
    assert "over the GPU alone" in page
    assert charts.count("<svg") == 5, "a schedule of two tracks, time, energy"
    assert len(charts) < 40_000
    assert "<script" not in charts
    assert charts.count('class="mark bar') == sum(event.end_us > event.start_us for event in compiled.timeline.events)


WRONG: dict[str, tuple[Any, str]] = {
    "compile": (lambda: pimflow.compile(42), "'model' is an int; give a path"),  # type: ignore[arg-type]
    "progress": (lambda: pimflow.compile("zoo:toy", progress=3), "'progress' is an int; "),  # type: ignore[arg-type]
    "debug": (lambda: pimflow.compile("zoo:toy", debug=3), "'debug' is an int; "),  # type: ignore[arg-type]
    "target": (lambda: pimflow.inspect("zoo:toy", target=3), "'target' is an int; "),  # type: ignore[arg-type]
    "load": (lambda: pimflow.load(None), "'folder' is a NoneType; give a path"),  # type: ignore[arg-type]
    "opt": (lambda: pimflow.opt("zoo:toy", [3]), "'passes' has an int; "),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_a_one_line_type_error(name: str) -> None:
    assert_type_error(*WRONG[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policies": "gpu"}, "'policies' is 'gpu'; it must be a list"),
        ({"policies": ["gpu", 3]}, r"'policies\[1\]' is 3; it must be text"),
        ({"policies": ["gpu", "none"]}, "unknown policy 'none'"),
        ({"policy": "gpu"}, "'policy' is an option of `compile`; give 'policies'"),
    ],
)
def test_policies_are_a_list_of_names(arguments: Any, message: str) -> None:
    with pytest.raises(pimflow.PimflowError, match=message):
        pimflow.compare("zoo:toy", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 3}, "'inputs' is an int; give arrays by input name, or an npz file"),
        ({"pim": "valeus"}, "'pim' is 'valeus'; did you mean 'values'?"),
        ({"seed": -1}, "'seed' is -1; it must be 0 or more"),
        ({"rtol": "much"}, "'rtol' is 'much'; it must be a number"),
    ],
)
def test_invalid_arguments_of_verify_are_a_one_line_error(
    compiled: pimflow.CompiledModel, arguments: Any, message: str
) -> None:
    with pytest.raises(pimflow.PimflowError) as caught:
        compiled.verify(**arguments)
    assert str(caught.value).startswith(message)


def test_inputs_are_arrays_by_name(compiled: pimflow.CompiledModel) -> None:
    with pytest.raises(TypeError, match=r"'inputs' is a ndarray; give arrays by input name, as in \{'input': array\}"):
        compiled.run(np.zeros((1, 3, 16, 16), np.float32))  # type: ignore[arg-type]


def test_policies_are_those_that_the_machine_can_follow() -> None:
    beside_cpu = [
        result.policy for result in pimflow.compare("zoo:toy", target="pimflow-cpu", use_cache=False).policies
    ]
    assert beside_cpu == list(pimflow.policies())
    on_upmem = [result.policy for result in pimflow.compare("zoo:toy", target="upmem", use_cache=False).policies]
    assert on_upmem == ["gpu", "pim", "md-dp", "pipeline", "pimflow", "auto"]


def _compared(model: str, *, policy: str, target: str) -> object:
    return pimflow.compare(model, policies=[policy], target=target)


@pytest.mark.parametrize("ask", [pimflow.compile, _compared])
def test_a_policy_that_no_unit_can_follow(ask: Callable[..., object]) -> None:
    with pytest.raises(OptionError, match=r"'newton\+\+', which no unit of the target offers; choose one of gpu, pim"):
        ask("zoo:toy", policy="newton++", target="upmem")


def test_units_without_a_policys_mapping_use_their_default() -> None:
    compiled = pimflow.compile("zoo:toy", policy="newton+", target="pimflow-cpu", use_cache=False)
    assert {item.choice for item in compiled.plan.decisions if isinstance(item, OnDevice) and item.device == "pim"} == {
        "newton+"
    }
