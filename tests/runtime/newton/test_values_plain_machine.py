"""The vectorised interpreter against one that executes command by command, and on wrong streams."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import PimProgram, lower, newton_mappings
from pimflow.codegen.newton.commands import Affine, CommandStream, Comp, GAct, GWrite, Item, Loop, ReadRes
from pimflow.codegen.newton.expand import flatten
from pimflow.errors import CommandOrderError, OptionError
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.values import execute, round_to
from pimflow.targets import PimSpec
from support.newton.plain_machine import run_stream
from support.newton.problems import PIM, checked_error, machines, problems, tensors


def plain(program: PimProgram, source: np.ndarray, weights: np.ndarray, operand: str, half: bool) -> np.ndarray:
    view, pim = program.source, program.pim
    flat = view.flatten(round_to(source, operand))
    matrix = view.gather(flat, np.arange(view.pixels), np.arange(view.depth))
    result = np.zeros((program.result.pixels, program.result.channels), np.float32)
    stored = round_to(program.weights.matrix(weights), operand)
    for stream in program.streams:
        if stream.body:
            banks = program.layout.fill_banks(stream.channel, stored, program.shape, pim)
            run_stream(
                stream, matrix, banks, result, bank_groups=pim.bank_groups, buffers=pim.fills_per_channel,
                buffer_slots=pim.buffer_columns, half=half,
            )  # fmt: skip
    return program.result.tensor(result)


@settings(max_examples=25)
@given(problems(), machines(), st.integers(0, 99), st.sampled_from(["fp32", "fp16", "bf16"]), st.booleans())
def test_equals_the_plain_machine(problem: MatrixProblem, pim: PimSpec, pick: int, operand: str, half: bool) -> None:
    if problem.macs > 200_000:
        problem = replace(problem, out_channels=problem.groups) if isinstance(problem, ConvProblem) else problem
    if problem.macs > 400_000:
        return
    space = candidates(problem, timing_profile(pim, "strict"))
    program = lower(problem, space[pick % len(space)].mapping, pim)
    assert isinstance(program, PimProgram)
    source, weights = tensors(problem, pick)
    accumulator = "fp16" if half else "fp32"
    result = execute(program, source, weights, operand, accumulator)
    expected = plain(program, source, weights, operand, half)
    assert checked_error(result, expected) < (2e-3 if half else 1e-5)


def small_program() -> tuple[PimProgram, np.ndarray, np.ndarray, np.ndarray]:
    problem = ConvProblem(1, 40, 48, 6, 6, (3, 3), (1, 1), (1, 1, 1, 1))
    program = lower(problem, candidates(problem, timing_profile(PIM, "artifact"))[0].mapping, PIM)
    assert isinstance(program, PimProgram)
    source, weights = tensors(problem, 1)
    return program, source, weights, execute(program, source, weights, "fp32")


def corrupt(items: tuple[Item, ...], kind: type, field: str, by: int) -> tuple[Item, ...]:
    """The first command of a kind with one address changed."""
    done = False

    def visit(item: Item) -> Item:
        nonlocal done
        if isinstance(item, Loop):
            return Loop(item.var, item.count, tuple(visit(inner) for inner in item.body))
        if done or not isinstance(item, kind):
            return item
        done = True
        return replace(item, **{field: getattr(item, field).plus(by)})

    return tuple(visit(item) for item in items)


@pytest.mark.parametrize(
    ("kind", "field", "by"),
    [(GWrite, "pixel", 1), (GWrite, "k", 1), (GAct, "row", 1), (Comp, "column", 1), (Comp, "slot", -1),
     (ReadRes, "pixel", 1), (ReadRes, "channel", 16)],
)  # fmt: skip
def test_a_wrong_address_gives_a_wrong_value_or_an_error(kind: type, field: str, by: int) -> None:
    program, source, weights, right = small_program()
    streams = list(program.streams)
    for channel in program.channel_groups[0]:  # equal in the whole group, which shares one buffer
        streams[channel] = CommandStream(channel, corrupt(streams[channel].body, kind, field, by))
    assert tuple(streams) != program.streams
    try:
        wrong = execute(program.with_streams(tuple(streams)), source, weights, "fp32")
    except CommandOrderError:
        return
    assert np.abs(wrong - right).max() > 1e-2 * np.abs(right).max()


def test_a_dropped_comp_gives_a_wrong_value() -> None:
    program, source, weights, right = small_program()

    def shorten(item: Item) -> Item:
        if not isinstance(item, Loop):
            return item
        fewer = isinstance(item.body[0], Comp) and len(item.body) == 1
        return Loop(item.var, item.count - fewer, tuple(shorten(inner) for inner in item.body))

    streams = tuple(replace(stream, body=tuple(map(shorten, stream.body))) for stream in program.streams)
    wrong = execute(program.with_streams(streams), source, weights, "fp32")
    assert np.abs(wrong - right).max() > 1e-2 * np.abs(right).max()


ACTS = tuple(GAct(group, Affine(0)) for group in range(PIM.bank_groups))
FILL = GWrite(Affine(0), 1, Affine(0), 8, 16)
COMP = Comp(Affine(0), Affine(0))
READ = ReadRes(Affine(0), Affine(0))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((*ACTS, COMP, READ), "command 4: COMP before its buffer"),
        ((FILL, *ACTS[:3], COMP, READ), "command 4: COMP with no open row"),
        ((FILL, *ACTS, READ), "command 5: READRES with nothing"),
        ((FILL, *ACTS, COMP, READ, READ), "command 7: READRES with nothing"),
        ((FILL, *ACTS, Comp(Affine(32), Affine(0)), READ), "command 5: column 32"),
        ((FILL, *ACTS, COMP, ReadRes(Affine(99), Affine(0))), "READRES pixel 99"),
        ((replace(FILL, pixel=Affine(4)), *ACTS, COMP, READ), "outside the source"),
        ((replace(FILL, pixels=2, pitch=512), *ACTS, COMP, READ), "overflows the buffer"),
    ],
)
def test_impossible_streams_are_refused(body: tuple[Item, ...], message: str) -> None:
    problem = MatmulProblem(4, 8, 16)
    program = lower(problem, newton_mappings(problem, PIM, "newton+")[0], PIM)
    assert isinstance(program, PimProgram)
    source, weights = tensors(problem, 0)
    idle = tuple(CommandStream(channel, ()) for channel in range(1, PIM.channels))
    with pytest.raises(CommandOrderError, match=message):
        execute(program.with_streams((CommandStream(0, body), *idle)), source, weights)


def test_channels_of_a_group_must_see_the_same_fills() -> None:
    program, source, weights, _ = small_program()
    channel = program.channel_groups[0][-1]
    streams = list(program.streams)
    streams[channel] = CommandStream(channel, (FILL, *streams[channel].body))
    with pytest.raises(CommandOrderError, match="different fills"):
        execute(program.with_streams(tuple(streams)), source, weights)


def test_unknown_types_are_refused() -> None:
    program, source, weights, _ = small_program()
    with pytest.raises(OptionError, match="operand"):
        execute(program, source, weights, "fp8")
    with pytest.raises(OptionError, match="accumulator"):
        execute(program, source, weights, "fp32", "fp64")


def test_pieces_of_any_size_make_the_same_commands() -> None:
    program, *_ = small_program()
    body = program.streams[0].body
    whole = list(flatten(body))
    assert len(whole) == 1
    for limit in (1, 7, 100, 1000):
        pieces = list(flatten(body, limit))
        for name in ("kind", "first", "second", "leaf"):
            joined = np.concatenate([getattr(piece, name) for piece in pieces])
            assert np.array_equal(joined, getattr(whole[0], name))


def test_flat_commands_are_the_expansion() -> None:
    program, *_ = small_program()
    stream = program.streams[3]
    (flat,) = flatten(stream.body)
    firsts = {GWrite: "pixel", GAct: "row", Comp: "column", ReadRes: "pixel"}
    expanded = [(type(command), getattr(command, firsts[type(command)]).at(v)) for command, v in stream.expand()]
    assert expanded == [(type(flat.leaves[leaf]), first) for leaf, first in zip(flat.leaf, flat.first, strict=True)]


def test_operands_round_to_nearest_even() -> None:
    bits = np.arange(0x3F7F0000, 0x3F830000, 0x1000, dtype=np.uint32)  # around 1, ties included
    values = np.concatenate(
        [bits.view(np.float32), -bits.view(np.float32), np.array([0, np.inf, -np.inf, 1e-40], np.float32)]
    )
    for operand, narrow in (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)):
        expected = values.astype(narrow).astype(np.float32)
        assert np.array_equal(round_to(values, operand), expected)
        assert len(set(expected.tolist())) < len(set(values.tolist()))
    assert np.isnan(round_to(np.array([np.nan], np.float32), "bf16")).all()
    assert np.array_equal(round_to(values, "fp32"), values)
