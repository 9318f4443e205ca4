"""PIM programs as plain JSON values and back, byte-stable: problem, mapping and the streams of all channels."""

from __future__ import annotations

from typing import Any

from pimflow.codegen.newton.commands import Affine, CommandStream, Comp, GAct
from pimflow.codegen.newton.lowering import PimProgram, lower
from pimflow.codegen.newton.mapping import Mapping
from pimflow.codegen.work import MatrixProblem
from pimflow.data import decode, encode, encode_json, json_text
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
    """`archive_program` as JSON without blanks, with a last key "operand" if it is given.

    The channels' streams differ in few addresses, so many operands and commands are equal.
    """
    texts = {name: encode_json(getattr(program, name), tagged=True, repeated=(Affine, Comp, GAct)) for name in _PARTS}
    texts |= {} if operand is None else {"operand": json_text(operand)}
    return f"{{{','.join([f'{json_text(name)}:{text}' for name, text in texts.items()])}}}"


def restore_program(data: Any, pim: PimSpec) -> PimProgram:
    """The program that `archive_program` was given, starting at row 0, with the archived streams.

    Raises:
        DataError: the data are not a program for this machine.
    """
    archived = decode(_Archived, data)
    problem: MatrixProblem = decode(MatrixProblem, archived.problem, tagged=True, path="problem")
    mapping = decode(Mapping, archived.mapping, tagged=True, path="mapping")
    program = lower(problem, mapping, pim)
    if isinstance(program, Refusal):
        raise DataError(f"'mapping' does not fit the machine: {program.reason}")
    return program.with_streams(decode(tuple[CommandStream, ...], archived.streams, tagged=True, path="streams"))
