"""A layer reports the cost of window order (im2win) if it is not chosen, and of the best other mapping if it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen import ConvProblem
from pimflow.report.layer import report_layer
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.targets import load_target

TARGET = load_target("pimflow")
FREE = TARGET.with_units(pim=replace(TARGET.pim, any_slot_any_column=True))
CHOSEN = ConvProblem(1, 64, 64, 28, 28, (3, 3), pads=(1, 1, 1, 1))
NOT_CHOSEN = ConvProblem(1, 16, 64, 14, 14, (3, 3), pads=(1, 1, 1, 1))


def told(problem: ConvProblem, *, free: bool = True, choice: str = "") -> NewtonLayer:
    report = report_layer(problem, FREE if free else TARGET, choice).detail
    assert isinstance(report, NewtonLayer)
    return report


@pytest.mark.parametrize(("problem", "is_chosen"), [(CHOSEN, True), (NOT_CHOSEN, False)])
def test_both_orders_are_reported(problem: ConvProblem, is_chosen: bool) -> None:
    layer = told(problem)
    other = layer.other_order
    assert other is not None
    assert bool(layer.cost.mapping.window_block) is is_chosen
    assert bool(other.mapping.window_block) is not is_chosen
    assert other.cycles >= layer.cost.cycles
    text = dict(layer.lines())["window order"]
    assert text.startswith("chosen" if is_chosen else "not chosen")
    assert f"{other.cycles:,} cycles" in text
    assert layer.as_json()["other_order"] == {
        "window_order": not is_chosen,
        "pim_cycles": other.cycles,
        "time_us": other.time_us,
    }


def test_without_window_order_no_machine_is_faster() -> None:
    """A machine that differs only in that it cannot use window order finds no faster mapping."""
    other = told(CHOSEN).other_order
    assert other is not None
    assert other.cycles <= told(CHOSEN, free=False).cost.cycles


@pytest.mark.parametrize(
    ("problem", "free", "choice"),
    [(CHOSEN, False, ""), (CHOSEN, True, "newton++"), (replace(CHOSEN, kernel=(1, 1), pads=(0, 0, 0, 0)), True, "")],
)
def test_nothing_is_reported_without_window_order(problem: ConvProblem, free: bool, choice: str) -> None:
    layer = told(problem, free=free, choice=choice)
    assert layer.other_order is None
    assert "window order" not in dict(layer.lines())
