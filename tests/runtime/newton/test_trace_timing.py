"""Timed text traces: the same times as the nests that they came from, in bounded memory; clear errors."""

from __future__ import annotations

import dataclasses
import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import CommandStream, GAct, Loop
from pimflow.codegen.newton.trace import write_trace
from pimflow.errors import CommandOrderError, PimflowError, TraceError
from pimflow.runtime.newton.trace_timing import CacheSizes, TraceResult, simulate_file
from support.newton.published_traces import EXPECTED, path, read_trace
from support.newton.streams import COMP, PIM, READRES, SWEEP, comps, gwrite, nests, row, stream
from support.newton.timing import time_stream


def write(folder: Path, text: str | bytes, name: str = "trace.pim") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(nests(buffers=2, depth=2), st.sampled_from(("artifact", "strict")), st.sampled_from(("hidden", "exposed")))
def test_parsed_text_takes_the_same_time_as_the_nest(
    tmp_path_factory: pytest.TempPathFactory, program: CommandStream, timing: str, latency: str
) -> None:
    machine = dataclasses.replace(PIM, buffers_per_channel=2)
    file = tmp_path_factory.mktemp("traces") / "stream.pim.gz"
    with gzip.open(file, "wt", compresslevel=1) as text:
        text.writelines(write_trace(program, machine))
    from_text = simulate_file(file, machine, timing, latency)
    from_nest = time_stream(program, machine, timing, latency)
    assert (from_text.cycles, from_text.prea, from_text.ref) == (from_nest.cycles, from_nest.prea, from_nest.ref)
    assert from_text.commands == from_nest.commands
    commands = stream(*read_trace(file, machine))
    assert time_stream(commands, machine, timing, latency) == from_nest


GOOD = "0x00000000 GWRITE_1 \n0x00000000 G_ACT0\n"


@pytest.mark.parametrize(
    ("line", "column", "what"),
    [
        ("0x00000000 G_ACT", 12, "'G_ACT' where a command should be"),
        ("0x00000000 READRES", 12, "READRES stands alone"),
        ("READRES 5", 9, "'5' after the command"),
        ("COMP", 1, "'COMP' where an address should be"),
        ("0x0000zz00 COMP", 1, "where an address should be"),
        ("0x00000000", 11, "no command after the address"),
        ("0x20000000 COMP", 1, "address '0x20000000' is out of range"),
        ("0xffffffffffffffff COMP", 1, "out of range"),
        ("0x10000000000000000 COMP", 1, "where an address should be"),
        ("0x00000000 G_ACT4", 12, "G_ACT4 does not exist"),
        ("0x00000000 G_ACT0 1", 19, "'1' after the command"),
        ("0x00000000 GWRITE 1 2", 21, "GWRITE with 2 numbers"),
        ("0x00000000 GWRITE 1 -2 3", 21, "'-2' where a number should be"),
        ("0x00000000 GWRITE 1 2 9999999999", 23, "where a number should be"),
        ("0x00000000 COMP 1 2 3", 21, "COMP with more than two numbers"),
        ("0x00000000 comp", 12, "'comp' where a command should be"),
        ("\x00\x01\x02", 1, "where an address should be"),
        ("é", 1, "where an address should be"),
        ("x" * 5000, 201, "line is too long for a command"),
    ],
)
def test_a_malformed_line_is_reported_with_file_line_and_column(
    tmp_path: Path, line: str, column: int, what: str
) -> None:
    file = write(tmp_path, GOOD + line + "\nREADRES\n")
    with pytest.raises(TraceError) as error:
        simulate_file(file, PIM, "artifact")
    assert f"{file}, line 3, column {column}: " in str(error.value)
    assert what in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_blank_lines_blanks_and_carriage_returns_do_not_matter(tmp_path: Path) -> None:
    plain = write(tmp_path, GOOD + "0x00000040 COMP\nREADRES\n", "plain.pim")
    odd = write(tmp_path, "\n" + GOOD.replace("\n", "  \r\n") + "  0x00000040\tCOMP \n\n \nREADRES", "odd.pim")
    assert simulate_file(plain, PIM, "artifact") == simulate_file(odd, PIM, "artifact")


def test_command_order_errors_name_line_and_index(tmp_path: Path) -> None:
    file = write(tmp_path, "\n" + GOOD + "\nREADRES\n")
    with pytest.raises(CommandOrderError, match=r"line 5, command 2: READRES of nothing"):
        simulate_file(file, PIM, "strict")
    machine = dataclasses.replace(PIM, rows=10000)
    file = write(tmp_path, GOOD + "0x0bfff800 G_ACT1\n")
    with pytest.raises(CommandOrderError, match=r"line 3, command 2: G_ACT of row 16383, outside of 0 to 9999"):
        simulate_file(file, machine, "strict")
    assert simulate_file(file, machine, "artifact").commands.g_act == 2


LINES = [line + b"\n" for line in gzip.decompress(path("random-15").read_bytes()).splitlines()]
BLANKS = (b"\n", b" \t\r\n")


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    """The first lines of a trace, with blank lines among them, and sometimes bytes."""
    lines = LINES[: draw(st.integers(1, 40))]
    for _ in range(draw(st.integers(0, 3))):
        more = st.sampled_from(BLANKS) | st.binary(max_size=9) if draw(st.booleans()) else st.sampled_from(BLANKS)
        lines.insert(draw(st.integers(0, len(lines))), draw(more))
    return b"".join(lines)


@pytest.mark.parametrize("packed", [False, True])
def test_random_bytes_give_an_error_or_a_result(tmp_path: Path, packed: bool) -> None:
    name = "bad.pim.gz" if packed else "bad.pim"
    seen = {"error": 0, "result": 0}

    @settings(max_examples=120, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=1, max_size=600) | traces(), st.booleans())
    def check(data: bytes, whole: bool) -> None:
        outcome = result_or_error(write(tmp_path, gzip.compress(data) if packed and whole else data, name))
        if isinstance(outcome, PimflowError):
            seen["error"] += 1
            assert name in str(outcome)
            return
        seen["result"] += 1
        counts = outcome.commands
        commands = counts.gwrite + counts.g_act + counts.comp + counts.readres
        assert commands == sum(bool(line.strip(b" \t\r")) for line in data.split(b"\n"))

    check()
    assert min(seen.values()) > 5, seen


def result_or_error(file: Path) -> TraceResult | PimflowError:
    try:
        return simulate_file(file, PIM)
    except PimflowError as error:
        return error


def test_broken_gzip_files(tmp_path: Path) -> None:
    whole = path("random-15").read_bytes()
    cycles = {simulate_file(write(tmp_path, whole, "whole.gz"), PIM, "artifact").cycles}
    for keep in (3, 10, 100, len(whole) // 2, len(whole) - 1):
        file = write(tmp_path, whole[:keep], "cut.pim.gz")
        with pytest.raises(TraceError, match=r"cut\.pim\.gz, after line \d+: gzip data is broken"):
            simulate_file(file, PIM, "artifact")
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 0xFF
    with pytest.raises(TraceError):
        simulate_file(write(tmp_path, bytes(changed), "changed.pim.gz"), PIM, "artifact")
    with pytest.raises(TraceError, match="is not a gzip file"):
        simulate_file(write(tmp_path, GOOD, "plain.pim.gz"), PIM)
    assert cycles == {EXPECTED["random-15"]["gwrite_hidden"]["cycles"]}


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for place in (tmp_path / "none.pim", tmp_path):
        with pytest.raises(TraceError, match=f"cannot read {place}"):
            simulate_file(place, PIM)


def test_a_long_trace_takes_bounded_memory(tmp_path: Path) -> None:
    """25,000 lines, most of them distinct, and one line of 8 MB of zero bytes: one or two MB while they are read."""
    acts = tuple(GAct(group, row(0, ("t", 1))) for group in range(4))
    program = stream(gwrite(16), Loop("t", 4096, (*acts, COMP, READRES)))
    file = tmp_path / "long.pim.gz"
    with gzip.open(file, "wt", compresslevel=1) as text:
        text.writelines(write_trace(program, PIM))
    bomb = tmp_path / "bomb.pim.gz"
    bomb.write_bytes(gzip.compress(bytes(8 << 20), 1))
    tracemalloc.start()
    result = simulate_file(file, PIM, "strict", cache_sizes=CacheSizes(lines=512))
    with pytest.raises(TraceError, match="line 1, column 201"):
        simulate_file(bomb, PIM)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.commands.comp == 4096
    assert peak < 3 << 20


def test_overflowing_caches_change_nothing() -> None:
    want = simulate_file(path("random-00"), PIM, "artifact")
    assert simulate_file(path("random-00"), PIM, "artifact", cache_sizes=CacheSizes(lines=3, states=5)) == want


def test_every_command_of_a_file_is_counted(tmp_path: Path) -> None:
    program = stream(gwrite(16), SWEEP, comps(5), READRES, gwrite(16))
    file = write(tmp_path, "".join(write_trace(program, PIM)))
    assert simulate_file(file, PIM).commands.as_json() == {"GWRITE": 2, "G_ACT": 4, "COMP": 5, "READRES": 1}
