"""Traces as text: byte for byte like the published ones, written lazily, and read back."""

from __future__ import annotations

import dataclasses
import gzip

import pytest

from pimflow.codegen.newton.commands import ZERO, Affine, CommandStream, Comp, GAct, GWrite, Loop
from pimflow.codegen.newton.trace import AddressLayout, write_trace
from pimflow.targets import PimSpec
from support.newton.published_traces import EXPECTED, path, read_trace
from support.newton.streams import PIM, READRES, SWEEP, gwrite, row, stream


def lines(program: CommandStream, pim: PimSpec = PIM, **options: int) -> list[str]:
    return list(write_trace(program, pim, **options))


def test_every_kind_of_line_is_as_in_the_published_files() -> None:
    program = stream(
        GWrite(ZERO, 16, ZERO, 27, 32), GAct(1, Affine(7)), Comp(Affine(3), Affine(3)), READRES, GAct(3, Affine(16383))
    )
    published = ["0x08003800 G_ACT1\n", "0x000000c0 COMP\n", "READRES\n", "0x19fff800 G_ACT3\n"]
    assert lines(program) == ["0x00000000 GWRITE 27 32 405\n", *published]
    assert lines(program, global_buffers=4)[0] == "0x00000000 GWRITE_4 27 32 405\n"


@pytest.mark.parametrize("name", sorted(EXPECTED)[::4])
def test_published_lines_read_and_written_are_the_same_bytes(name: str) -> None:
    with gzip.open(path(name), "rt") as file:
        text = [line for line in file if "GWRITE" not in line]
    again = lines(stream(*(command for command in read_trace(path(name), PIM) if not isinstance(command, GWrite))))
    assert again == text


def test_loops_are_expanded_in_order_and_lazily() -> None:
    program = stream(
        gwrite(16), SWEEP, Loop("i", 2, (Loop("j", 10**12, (Comp(row(4, ("i", -4)), row(4, ("i", -4))), READRES)),))
    )
    generator = write_trace(program, PIM)
    first = [next(generator) for _ in range(8)]
    assert first[5:] == ["0x00000100 COMP\n", "READRES\n", "0x00000100 COMP\n"]


def test_machines_that_need_more_numbers_write_them() -> None:
    machine = dataclasses.replace(
        PIM, rows=32768, columns=64, bank_groups=8, banks=64, any_slot_any_column=True, buffers_per_channel=2
    )
    assert AddressLayout.of(machine) == AddressLayout(row=12, group=30, bits=33)
    assert AddressLayout.of(PIM) == AddressLayout(row=11, group=27, bits=29)
    program = stream(gwrite(8, 1), GAct(7, Affine(32767)), Comp(Affine(63), Affine(5)), Comp(Affine(2), Affine(2), 1))
    assert lines(program, machine) == [
        "0x00000000 GWRITE 8 8 0 1\n", "0x1c7fff000 G_ACT7\n", "0x00000fc0 COMP 5\n", "0x00000080 COMP 2 1\n"
    ]  # fmt: skip
