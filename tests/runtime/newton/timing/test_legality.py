"""Commands that hardware would refuse are refused under `strict`, with their index in the expanded stream."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import ZERO, Affine, CommandStream, Comp, GAct, GWrite, Loop
from pimflow.errors import CommandOrderError
from pimflow.targets import PimSpec
from support.newton.streams import COMP, PIM, READRES, SWEEP, comps, gwrite, row, stream
from support.newton.timing import time_stream

TILE = (*SWEEP, comps(3), READRES)


def refusal(program: CommandStream, pim: PimSpec = PIM) -> tuple[int, str]:
    with pytest.raises(CommandOrderError) as error:
        time_stream(program, pim, "strict")
    found = re.fullmatch(r"channel 0, command (\d+): (.*)", error.value.what)
    assert found is not None
    return int(found[1]), found[2]


@pytest.mark.parametrize(
    ("program", "index", "reason"),
    [
        (stream(gwrite(), COMP), 1, "COMP with no open row in bank group 0, 1, 2, 3"),
        (stream(gwrite(), SWEEP[:3], COMP), 4, "COMP with no open row in bank group 3"),
        (stream(gwrite(), SWEEP, COMP, SWEEP[1], COMP), 7, "COMP with no open row in bank group 0, 2, 3"),
        (stream(SWEEP, COMP), 4, "COMP from buffer 0, which was never written"),
        (stream(READRES), 0, "READRES of nothing"),
        (stream(gwrite(), Loop("t", 9, TILE), READRES), 1 + 9 * 8, "READRES of nothing"),
        (stream(gwrite(), Loop("t", 9, (*TILE, Loop("r", 2, (COMP, READRES, READRES))))), 11, "READRES of nothing"),
        (stream(gwrite(), Loop("a", 5, (Loop("t", 10**9, TILE), READRES))), 1 + 8 * 10**9, "READRES of nothing"),
        (stream(gwrite(), Loop("t", 2, (SWEEP[:3], TILE)[0] + TILE), SWEEP[0], COMP), 24, "bank group 1, 2, 3"),
        (stream(gwrite(8, 1)), 0, "GWRITE to buffer 1, but a channel's buffers are 0 to 0"),
        (stream(gwrite(), SWEEP, Comp(ZERO, ZERO, 2)), 5, "COMP from buffer 2"),
        (stream(gwrite(), SWEEP, GAct(4, ZERO)), 5, "G_ACT4, but this machine's bank groups are 0 to 3"),
        (stream(gwrite(513)), 0, "GWRITE up to element 512, outside of 0 to 511"),
        (stream(GWrite(ZERO, 3, ZERO, 100, 208)), 0, "GWRITE up to element 515"),
        (stream(gwrite(), GAct(0, Affine(16384))), 1, "G_ACT of row 16384, outside of 0 to 16383"),
        (stream(Loop("i", 3, (GAct(0, row(1, ("i", -1))),))), 2, "G_ACT of row -1"),
        (stream(gwrite(), SWEEP, Comp(Affine(32), Affine(32))), 5, "COMP of column 32, outside of 0 to 31"),
        (stream(gwrite(), SWEEP, Comp(Affine(3), Affine(2))), 5, "slot and column differ by -1"),
    ],
)
def test_index_and_reason(program: CommandStream, index: int, reason: str) -> None:
    found, text = refusal(program)
    assert found == index
    assert reason in text


def test_the_first_of_several_is_named() -> None:
    assert refusal(stream(gwrite(), GAct(0, Affine(20000)), READRES))[0] == 1
    assert refusal(stream(gwrite(), READRES, GAct(0, Affine(20000))))[0] == 1


def test_free_pairing_depends_on_the_machine() -> None:
    program = stream(gwrite(), SWEEP, Comp(Affine(3), Affine(2)), READRES)
    assert time_stream(program, dataclasses.replace(PIM, any_slot_any_column=True), "strict").cycles > 0
    assert (
        "COMP of buffer slot 32"
        in refusal(
            stream(gwrite(), SWEEP, Comp(Affine(3), Affine(32))), dataclasses.replace(PIM, any_slot_any_column=True)
        )[1]
    )


def test_artifact_has_no_row_state_but_knows_its_bank_groups() -> None:
    assert time_stream(stream(READRES, COMP, GAct(3, Affine(99999))), PIM, "artifact").cycles > 0
    with pytest.raises(CommandOrderError, match="command 2: G_ACT4"):
        time_stream(stream(READRES, COMP, GAct(4, ZERO)), PIM, "artifact")


def test_a_refusal_is_repeatable_and_has_no_side_effects() -> None:
    good, bad = stream(gwrite(), Loop("t", 40, TILE)), stream(gwrite(), Loop("t", 40, TILE), READRES)
    before = time_stream(good, PIM, "strict")
    assert refusal(bad) == refusal(bad)
    assert time_stream(good, PIM, "strict") == before


strides = st.integers(-9000, 9000)


@settings(max_examples=150)
@given(st.integers(-200, 17000), strides, strides, strides, st.integers(1, 5), st.integers(0, 4), st.integers(1, 4))
def test_first_row_out_of_range_equals_a_search(
    base: int, outer: int, middle: int, inner: int, rounds: int, again: int, most: int
) -> None:
    """Brute force over the expanded stream, for rows affine in three loops."""
    act = GAct(0, row(base, ("a", outer), ("b", middle), ("c", inner)))
    body = (GAct(1, ZERO), Loop("b", again, (Loop("c", most, (act, GAct(2, ZERO))),)), GAct(3, row(8000, ("a", outer))))
    program = stream(gwrite(), Loop("a", rounds, body))
    outside = [
        index
        for index, (command, variables) in enumerate(program.expand())
        if isinstance(command, GAct) and not 0 <= command.row.at(variables) < PIM.rows
    ]
    if not outside:
        assert time_stream(program, PIM, "strict").commands.gwrite == 1
        return
    assert refusal(program)[0] == outside[0]
