"""Every room of the compiler has a rule for every op that it handles, or states why it needs none."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pimflow
from pimflow.frontend.convert import CONVERSIONS
from pimflow.ir import Op, OpRules, register_op
from pimflow.ir.ops import rules
from pimflow.ir.ops.base import OPS
from pimflow.ir.registry import scratch_registrations

for module in pkgutil.walk_packages(pimflow.__path__, "pimflow."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

ROOMS = rules.ROOMS.values()
NAMES = {
    "ONNX export",
    "matrix problems",
    "work on the GPU",
    "values of products",
    "values of sparse ops",
    "kernels on CUDA",
    "identity test",
    "movement analysis",
    "gradients",
}


def test_the_rules_of_every_room_are_listed_in_the_documentation() -> None:
    text = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    modules = [module for name, module in sys.modules.items() if name.startswith("pimflow.")]
    homes = {
        id(value): name for module in modules for name, value in vars(module).items() if isinstance(value, OpRules)
    }
    assert len(homes) == len(ROOMS)
    assert all(f"`{name}`" in text for name in homes.values())


def test_the_rooms_are_the_known_ones() -> None:
    assert sorted(room.what for room in ROOMS) == sorted(NAMES), "add the room here and to docs/architecture.md"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.what)
def test_no_room_lacks_a_rule(room: OpRules[Any]) -> None:
    missing = ", ".join(room.missing())
    assert not missing, f"{room.what}: give {missing} a rule, or state with leave_out why there is none"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.what)
def test_ops_that_a_room_omits_have_a_reason_and_no_rule(room: OpRules[Any]) -> None:
    assert all(room.left_out.values())
    assert not set(room.left_out) & set(room)


def test_every_operator_that_is_a_typed_op_is_converted() -> None:
    operators = {(kind.onnx_domain, name) for kind in OPS.values() for name in kind.onnx_names}
    assert operators <= set(CONVERSIONS)


def test_only_registered_ops_have_rules() -> None:
    known = set(OPS.values())
    assert all(set(room) <= known for room in ROOMS)


def test_a_new_op_is_missed_by_every_room_that_it_concerns() -> None:
    with scratch_registrations():

        @register_op
        @dataclass(frozen=True)
        class Outer(Op):
            is_contraction = True

            scale: float

        @register_op
        @dataclass(frozen=True)
        class Plain(Op):
            is_contraction = True

        lacking = {room.what for room in ROOMS if "Outer" in room.missing()}
        plain = {room.what for room in ROOMS if "Plain" in room.missing()}
    assert lacking - plain == {"ONNX export"}, "an op without parameters is its name over its inputs"
    rooms = {"matrix problems", "work on the GPU", "values of products", "kernels on CUDA", "gradients"}
    assert lacking == {"ONNX export", *rooms}
    assert not any("Outer" in room.missing() for room in ROOMS)
