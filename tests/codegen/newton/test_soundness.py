"""Streams read from a file: nests that cannot be expanded, and addresses that no memory has, are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen.newton import CommandStream
from pimflow.codegen.newton.commands import ZERO, Affine, Comp, GAct, GWrite, Item, Loop, ReadRes
from pimflow.codegen.newton.soundness import check_streams
from pimflow.errors import DataError
from pimflow.targets import load_target

PIM = load_target("pimflow").pim
FILL = GWrite(ZERO, 1, ZERO, 16, 16)
INSIDE = Affine(0, (("i", 1),))


def streams(*body: Item) -> tuple[CommandStream, ...]:
    return (CommandStream(0, body), *(CommandStream(channel, ()) for channel in range(1, PIM.channels)))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Loop("i", -1, (FILL,)), r"'streams\[0\]' has a loop over 'i' of -1 iterations of 1 items"),
        (Loop("i", 3, ()), "a loop over 'i' of 3 iterations of 0 items"),
        (Loop("i", 2, (Loop("i", 2, (FILL,)),)), "a loop over 'i' inside another one"),
        (Loop("i", 1 << 40, (Loop("j", 1 << 40, (FILL,)),)), "loops of .* iterations"),
        (replace(FILL, pixel=Affine(1 << 70)), "a GWrite whose 'pixel' reaches from"),
        (replace(FILL, k=Affine(-1)), "a GWrite whose 'k' reaches from -1 to -1"),
        (replace(FILL, pitch=0), "a GWrite whose 'pitch' is 0; it must be at least 1"),
        (replace(FILL, copies=1 << 70), "a GWrite whose 'copies' is "),
        (replace(FILL, buffer=1 << 62), "a GWrite whose 'buffer' is "),
        (Comp(ZERO, ZERO, 9), "a Comp whose 'buffer' is 9"),
        (Comp(INSIDE, ZERO), "a Comp whose 'column' depends on 'i', and no loop around it"),
        (GAct(4, ZERO), "a GAct whose 'group' is 4"),
        (Loop("i", 1 << 50, (ReadRes(Affine(0, (("i", 1 << 20),)), ZERO),)), "a ReadRes whose 'pixel' reaches"),
    ],
)
def test_nests_that_cannot_be_expanded_are_refused(item: Item, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_streams(streams(item), PIM)


def test_there_is_one_stream_for_every_channel() -> None:
    check_streams(streams(FILL), PIM)
    for wrong in (streams(FILL)[1:], streams(FILL)[::-1], (*streams(FILL), CommandStream(0, ()))):
        with pytest.raises(DataError, match="not those of channels 0 to 15 in this order"):
            check_streams(wrong, PIM)
