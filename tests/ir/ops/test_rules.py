"""Rules of a room: found by the op's class, queried by trait, and never silently missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pimflow.ir import Conv2d, Gemm, MatMul, Op, OpRules, register_op
from pimflow.ir.registry import scratch_registrations


@pytest.fixture(autouse=True)
def _scratch() -> Iterator[None]:
    with scratch_registrations():
        yield


def room() -> OpRules[Callable[[Op], str]]:
    return OpRules("naming", asks=lambda kind: kind.is_contraction)


def test_a_rule_is_found_by_the_class_of_the_op() -> None:
    naming = room()

    @naming.register(Conv2d, Gemm)
    def _name(op: Op) -> str:
        return op.onnx_name

    assert naming.of(Conv2d((1, 1)))(Conv2d((1, 1))) == "Conv"
    assert naming.find(Gemm()) is naming.of(Gemm(alpha=2.0))
    assert naming.find(MatMul()) is None
    with pytest.raises(NotImplementedError, match="naming: no rule for MatMul"):
        naming.of(MatMul())


def test_a_subclass_does_not_inherit_a_rule() -> None:
    naming = room()
    naming.add(MatMul, lambda op: "product")

    @dataclass(frozen=True)
    class Scaled(MatMul):
        scale: float = 2.0

    assert naming.find(Scaled()) is None


def test_a_room_names_its_missing_rules() -> None:
    naming = room()
    naming.add(Conv2d, lambda op: "convolution")
    assert naming.missing() == ("Gemm", "MatMul")
    naming.leave_out("a Gemm has a name already", Gemm)
    assert naming.missing() == ("MatMul",)

    @register_op
    @dataclass(frozen=True)
    class Outer(Op):
        is_contraction = True

    assert naming.missing() == ("MatMul", "Outer")
    with pytest.raises(ValueError, match="'naming' is registered already"):
        room()
