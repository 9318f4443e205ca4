"""A target made in Python is checked like a target file, with the same messages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pimflow.data import Table
from pimflow.errors import TargetError
from pimflow.targets import Target, load_target, parse_target, to_toml

MACHINE = load_target("pimflow")


def of_python(**changes: Any) -> Target:
    return replace(MACHINE, units=Table({**MACHINE.units, "pim": replace(MACHINE.pim, **changes)}))


def of_a_file(**changes: Any) -> Target:
    text = to_toml(MACHINE)
    for key, value in changes.items():
        head, _, rest = text.partition(f"\n{key} = ") if key != "channels" else text.partition("\nchannels = ")
        text = f"{head}\n{key} = {value}\n" + rest.split("\n", 1)[1]
    return parse_target(text, "m.toml")


@pytest.mark.parametrize(
    "changes",
    [{"channels": 0}, {"channels": 40}, {"channels": 2}, {"bank_groups": 5}, {"columns": -3}, {"multipliers": 2.5}],
)
def test_the_same_mistake_has_the_same_message(changes: dict[str, Any]) -> None:
    told = []
    for make in (of_python, of_a_file):
        with pytest.raises(TargetError) as caught:
            make(**changes)
        told.append(str(caught.value).partition(": ")[2])
    assert told[0] == told[1]
    assert "'pim." in told[0]


UNITS = MACHINE.units


def made(**changes: Any) -> Target:
    return replace(MACHINE, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: made(name=3), "target '3': 'name' is 3; it must be text"),
        (lambda: made(units=[1]), "'units' is a list; it must be units by device, the host first"),
        (lambda: made(units={"gpu": 1}), "'gpu' is an int; it must be a unit"),
        (lambda: made(units={"gpu": UNITS["gpu"]}), "missing key 'pim'; add it"),
        (lambda: made(units={"pim": UNITS["pim"], "gpu": UNITS["gpu"]}), "missing key 'gpu'"),
        (lambda: of_python(operand="fp61"), "'pim.operand' is 'fp61'; did you mean 'fp16'?"),
        (lambda: of_python(timing=3), "'pim.timing' is 3; it must be a table"),
        (lambda: of_python(rows=np.zeros(2)), "'pim': a ndarray has no form as plain data"),
        (lambda: of_python(launch_us=float("nan")), "'pim.launch_us' is nan; it must be finite"),
    ],
)
def test_a_target_that_no_file_could_be_is_refused(make: Callable[[], Target], message: str) -> None:
    with pytest.raises(TargetError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numpy_numbers_and_integers_become_plain_numbers() -> None:
    machine = of_python(channels=np.int64(8), clock_mhz=900, launch_us=np.float32(1.5))
    assert [type(value) for value in (machine.pim.channels, machine.pim.clock_mhz, machine.pim.launch_us)] == [
        int,
        float,
        float,
    ]
    assert parse_target(to_toml(machine), "m.toml") == machine


def test_changes_are_tracked_however_they_are_made() -> None:
    machine = of_python(channels=8, buffers=2)
    assert [str(change) for change in machine.overrides] == ["pim.channels = 8 (not 16)", "pim.buffers = 2 (not 4)"]
    assert machine.description == "pimflow with pim.channels = 8, pim.buffers = 2"
    assert machine == pickle.loads(pickle.dumps(machine))
    assert of_python().overrides == ()
    made = Target("mine", "my own", MACHINE.units)
    assert (made.overrides, made.description) == ((), "my own")
