"""PIM programs as plain JSON values and back, byte-stable: problem, mapping and the streams of all channels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pimflow.codegen.newton.commands import Affine, CommandStream, Comp, GAct, GWrite, Loop, ReadRes
from pimflow.codegen.newton.emit import Makers, OperandEmitter, Terms
from pimflow.codegen.newton.lowering import MARK, PimProgram, lower
from pimflow.codegen.newton.mapping import Mapping
from pimflow.codegen.newton.soundness import check_streams
from pimflow.codegen.work import MatrixProblem
from pimflow.data import decode, encode, encode_json, json_text, record_form
from pimflow.errors import DataError
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.targets import PimSpec

_PARTS = ("problem", "mapping", "streams")


@dataclass(frozen=True)
class _Archived:
    """The archived parts of a program, each as tagged data."""

    problem: Any
    mapping: Any
    streams: Any


def archive_program(program: PimProgram) -> Any:
    """A program as JSON values, independent of where its weights are: problem, mapping, and the streams of all channels
    as loop nests."""
    return {name: encode(getattr(program, name), tagged=True) for name in _PARTS}


def archive_text(program: PimProgram, operand: str | None = None) -> str:
    """`archive_program` as JSON without blanks, with a last key "operand" if it is given."""
    streams = _streams_text(program) if program.other_streams is None else encode_json(program.streams, tagged=True)
    texts = [encode_json(program.problem, tagged=True), encode_json(program.mapping, tagged=True), streams]
    parts = [f"{json_text(name)}:{text}" for name, text in zip(_PARTS, texts, strict=True)]
    parts += [] if operand is None else [f'"operand":{json_text(operand)}']
    return f"{{{','.join(parts)}}}"


def _streams_text(program: PimProgram) -> str:
    """The streams of a program as JSON, written instead of made and then encoded: that takes a fifth of the time.

    Channels that differ in their tiles alone share all text but the operands of READRES that follow from these.
    """
    bodies: dict[int, str] = {}
    for nest, tiles in program.marked_nests(_TextEmitter):
        pieces = ",".join(nest).split(_MARKED)
        marked = [divmod(int(number), MARK * program.pim.banks) for number in pieces[1::2]]
        for channel, own in tiles.items():
            pieces[1::2] = [str(rest + own[place - 1] * program.pim.banks) for place, rest in marked]
            bodies[channel] = "".join(pieces)
    texts = [_STREAM % (channel, f"[{bodies.get(channel, '')}]") for channel in range(program.pim.channels)]
    return f"[{','.join(texts)}]"


_MARKED = "\0"
"""Around numbers that follow from marked tiles."""

_STREAM, _LOOP = record_form(CommandStream, tagged=True), record_form(Loop, tagged=True)
_GWRITE, _READRES = record_form(GWrite, tagged=True), record_form(ReadRes, tagged=True)
_G_ACT, _COMP = record_form(GAct, tagged=True), record_form(Comp, tagged=True)


@lru_cache(maxsize=1 << 14)
def _affine(base: int, terms: Terms) -> str:
    """The text of an operand; a base that follows from a marked tile is set apart. The channels' streams differ in few
    addresses, so many are equal."""
    text = encode_json(Affine(base, terms), tagged=True)
    return text if base < MARK else text.replace(str(base), f"{_MARKED}{base}{_MARKED}", 1)


class _TextEmitter(OperandEmitter[str]):
    """Emits what `encode_json` makes of commands and loops."""

    makers = Makers(
        affine=_affine,
        gwrite=lambda *fields: _GWRITE % fields,
        g_act=lambda *fields: _G_ACT % fields,
        comp=lambda *fields: _COMP % fields,
        readres=lambda pixel, channel, add: _READRES % (pixel, channel, "true" if add else "false"),
    )

    def loop(self, var: str, count: int, body: tuple[str, ...]) -> tuple[str, ...]:
        """The loop as JSON."""
        if count == 1:
            return body
        return (_LOOP % (f'"{var}"', count, f"[{','.join(body)}]"),) if count and body else ()


def restore_program(data: Any, pim: PimSpec) -> PimProgram:
    """The program that `archive_program` was given, starting at row 0, with the archived streams.

    Raises:
        DataError: the data are not a program for this machine.
    """
    archived = decode(_Archived, data)
    problem: MatrixProblem = decode(MatrixProblem, archived.problem, tagged=True, path="problem")
    if min(problem.pixels, problem.depth, problem.columns, problem.groups) < 1:
        raise DataError("'problem' is empty")
    mapping = decode(Mapping, archived.mapping, tagged=True, path="mapping")
    program = lower(problem, mapping, pim)
    if isinstance(program, Refusal):
        raise DataError(f"'mapping' does not fit the machine: {program.reason}")
    streams = decode(tuple[CommandStream, ...], archived.streams, tagged=True, path="streams")
    check_streams(streams, program.pim)
    return program.with_streams(streams)
