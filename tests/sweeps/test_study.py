"""Sweep files: their meaning, and errors in them."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pimflow.errors import OptionError, PimflowError
from pimflow.sweeps.study import Study

TOY: dict[str, Any] = {"models": ["zoo:toy"]}


def test_points_are_all_combinations_in_order() -> None:
    study = Study.of(
        {
            "models": ["zoo:toy", "zoo:mobilenet-v2"],
            "policies": ["md-dp", "auto"],
            "grid": {"pim.channels": [4, 8], "pim": {"buffers": [1, 2]}},
            "lists": {"gpu.clock_mhz": [1000, 2000], "gpu.sms": [20, 40]},
        }
    )
    points = list(study.points())
    assert len(points) == study.count == 2 * 2 * 2 * 2 * 2 == len(set(points))
    assert [dict(point.values) for point in points[:5:2]] == [
        {"pim.channels": 4, "pim.buffers": 1, "gpu.clock_mhz": 1000, "gpu.sms": 20},
        {"pim.channels": 4, "pim.buffers": 1, "gpu.clock_mhz": 2000, "gpu.sms": 40},
        {"pim.channels": 4, "pim.buffers": 2, "gpu.clock_mhz": 1000, "gpu.sms": 20},
    ]
    assert [point.policy for point in points[:2]] == ["md-dp", "auto"]


def test_one_point_where_nothing_is_varied() -> None:
    (point,) = Study.of(TOY).points()
    assert point.as_json() == {"model": "zoo:toy", "graph": "", "target": "pimflow", "policy": "auto", "values": {}}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("step", [None, 3])
def test_random_values_keep_to_their_ranges(whole: bool, log: bool, step: int | None) -> None:
    ends = {"low": 2, "high": 64} if whole else {"low": 2.0, "high": 64.0}
    span = {**ends, "log": log, **({} if step is None else {"step": step if whole else float(step)})}
    random = {"points": 400, "values": {"pim.banks": span, "pim.buffers": [1, 4]}}
    study = Study.of({**TOY, "random": random})
    values = [point.values for point in study.points()]
    banks = [value["pim.banks"] for value in values]
    assert all(2 <= bank <= 64 for bank in banks)
    assert {type(bank) for bank in banks} == ({int} if whole else {float})
    assert {value["pim.buffers"] for value in values} == {1, 4}
    if step is not None:
        assert all(math.isclose((bank - 2) / step, round((bank - 2) / step)) for bank in banks)
        assert len(set(banks)) <= 21
    middle = sorted(banks)[200]
    assert middle < 20 if log else 24 < middle < 42
    assert max(banks) > 56
    assert min(banks) < 6


def test_more_random_points_begin_with_the_same() -> None:
    def drawn(points: int, seed: int = 0) -> list[dict[str, Any]]:
        span = {"low": 1, "high": 10**6}
        study = Study.of({**TOY, "random": {"points": points, "seed": seed, "values": {"pim.rows": span}}})
        return [dict(point.values) for point in study.points()]

    assert drawn(20)[:5] == drawn(5)
    assert drawn(5) != drawn(5, seed=1)
    assert len({value["pim.rows"] for value in drawn(20)}) == 20


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "missing key 'models'"),
        ({"models": []}, "'models' is empty"),
        ({"models": ["zoo:toy", "zoo:toy"]}, "has a duplicate"),
        ({**TOY, "modls": 1}, "unknown key 'modls'; did you mean 'models'"),
        ({**TOY, "policies": ["best"]}, "unknown policy 'best'"),
        ({**TOY, "targets": ["nop"]}, "unknown target 'nop'"),
        ({**TOY, "options": {"policy": "auto"}}, "unknown option 'policy'"),
        ({**TOY, "options": {"grid": 99}}, "'grid' is 99"),
        ({**TOY, "grid": {"pim.bankz": [1]}}, "no key 'pim.bankz'; did you mean 'pim.banks'"),
        ({**TOY, "grid": {"pim.banks": 4}}, "no list of values for 'pim.banks'"),
        ({**TOY, "grid": {"pim.banks": []}}, "no list of values for 'pim.banks'"),
        ({**TOY, "grid": {"gpu.sms": [1.0, math.nan]}}, "'gpu.sms' has a value that is no finite number"),
        ({**TOY, "grid": {"gpu.sms": [date(2020, 1, 1)]}}, "'gpu.sms' has a value that is no finite number"),
        ({**TOY, "lists": {"gpu.sms": [[1], [math.inf]]}}, "'gpu.sms' has a value that is no finite number"),
        ({**TOY, "random": {"points": 1, "values": {"gpu.sms": [-math.inf]}}}, "'gpu.sms' has a value that is no"),
        ({**TOY, "lists": {"pim.banks": [1, 2], "pim.rows": [1]}}, "differ in length (pim.banks 2, pim.rows 1)"),
        ({**TOY, "grid": {"pim.banks": [1]}, "lists": {"pim.banks": [2]}}, "'pim.banks' is varied twice"),
        ({**TOY, "random": {"points": 0, "values": {}}}, "'random.points' is 0"),
        ({**TOY, "random": {"points": 1, "values": {"pim.banks": {"low": 4, "high": 2}}}}, "goes from 4.0 to 2.0"),
        ({**TOY, "random": {"points": 1, "values": {"pim.banks": {"low": 0, "high": 2, "log": True}}}}, "above 0"),
        ({**TOY, "random": {"points": 1, "values": {"pim.banks": {"low": math.inf, "high": 2}}}}, "must be finite"),
        ({**TOY, "random": {"points": 1, "values": {"pim.banks": "4"}}}, "neither a list nor a range"),
        ({**TOY, "search": {"trials": 5}}, "[search] chooses among the points of a grid"),
        ({**TOY, "search": {"trials": 5, "sampler": "best"}, "grid": {"pim.banks": [4]}}, "'search.sampler' is 'best'"),
        ({**TOY, "grid": {"pim.banks": [4] * 1001, "pim.rows": [4] * 1001}}, "1,002,001 points"),
    ],
)
def test_errors_are_one_line(data: dict[str, Any], words: str) -> None:
    with pytest.raises(PimflowError) as caught:
        Study.of(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "machine.toml").write_text('base = "pimflow"\npim.channels = 8\n')
    file = tmp_path / "deep" / "sweep.toml"
    file.write_text('models = ["../m.onnx", "zoo:toy"]\ntargets = ["../machine.toml", "pimflow"]\n')
    study = Study.load(file)
    assert [Path(name).resolve() for name in study.models[:1]] == [tmp_path / "m.onnx"]
    assert study.models[1] == "zoo:toy"
    assert Path(study.targets[0]).resolve() == tmp_path / "machine.toml"


@pytest.mark.parametrize("text", ["models = [", "\x00", "models = 5", 'models = ["zoo:toy"]\ngrid = 4', "random = {}"])
def test_an_invalid_file_is_a_one_line_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(OptionError) as caught:
        Study.load(file)
    assert "sweep.toml" in str(caught.value)


def test_inputs_fixed_to_numbers_that_json_lacks_are_kept_as_words() -> None:
    study = Study.of({**TOY, "options": {"fixed": {"input": [0.5, -math.inf]}, "seed": 3}})
    assert study.options == {"fixed": {"input": (0.5, "-inf")}, "seed": 3}
