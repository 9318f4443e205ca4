"""Text traces: written byte for byte as the golden ones, read back to the same timing, and wrong ones told clearly."""

from __future__ import annotations

import dataclasses
import gzip
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import ZERO, Affine, Comp, GAct, GWrite, Loop
from pimflow.codegen.newton.trace import AddressLayout, read_trace, write_trace
from pimflow.errors import CommandOrderError, PimflowError, TraceError
from pimflow.runtime.newton import trace_timing
from pimflow.runtime.newton.trace_timing import simulate_file
from support.newton.golden_traces import EXPECTED, path
from support.newton.streams import COMP, PIM, READRES, SWEEP, comps, gwrite, nests, row, stream
from support.newton.timing import time_stream


def lines(program, pim=PIM, **options):
    return list(write_trace(program, pim, **options))


def write(folder, text, name="trace.pim"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_every_kind_of_line_is_as_in_the_golden_files():
    program = stream(
        GWrite(ZERO, 16, ZERO, 27, 32), GAct(1, Affine(7)), Comp(Affine(3), Affine(3)), READRES, GAct(3, Affine(16383))
    )
    golden = ["0x08003800 G_ACT1\n", "0x000000c0 COMP\n", "READRES\n", "0x19fff800 G_ACT3\n"]
    assert lines(program) == ["0x00000000 GWRITE 27 32 405\n", *golden]
    assert lines(program, global_buffers=4)[0] == "0x00000000 GWRITE_4 27 32 405\n"


@pytest.mark.parametrize("name", sorted(EXPECTED)[::4])
def test_golden_lines_read_and_written_are_the_same_bytes(name):
    with gzip.open(path(name), "rt") as file:
        text = [line for line in file if "GWRITE" not in line]
    again = lines(stream(*(command for command in read_trace(path(name), PIM) if not isinstance(command, GWrite))))
    assert again == text


def test_loops_are_expanded_in_order_and_lazily():
    program = stream(
        gwrite(16), SWEEP, Loop("i", 2, (Loop("j", 10**12, (Comp(row(4, ("i", -4)), row(4, ("i", -4))), READRES)),))
    )
    generator = write_trace(program, PIM)
    first = [next(generator) for _ in range(8)]
    assert first[5:] == ["0x00000100 COMP\n", "READRES\n", "0x00000100 COMP\n"]


def test_machines_that_need_more_numbers_write_them():
    machine = dataclasses.replace(
        PIM, rows=32768, columns=64, bank_groups=8, banks=64, any_slot_any_column=True, buffers_per_channel=2
    )
    assert AddressLayout.of(machine) == AddressLayout(row=12, group=30, bits=33)
    assert AddressLayout.of(PIM) == AddressLayout(row=11, group=27, bits=29)
    program = stream(gwrite(8, 1), GAct(7, Affine(32767)), Comp(Affine(63), Affine(5)), Comp(Affine(2), Affine(2), 1))
    assert lines(program, machine) == [
        "0x00000000 GWRITE 8 8 0 1\n", "0x1c7fff000 G_ACT7\n", "0x00000fc0 COMP 5\n", "0x00000080 COMP 2 1\n"
    ]  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(buffers=2, depth=2), st.sampled_from(("artifact", "strict")), st.sampled_from(("hidden", "exposed")))
def test_text_read_back_times_as_the_nest_does(tmp_path_factory, program, profile, latency):
    machine = dataclasses.replace(PIM, buffers_per_channel=2)
    file = tmp_path_factory.mktemp("traces") / "stream.pim.gz"
    with gzip.open(file, "wt", compresslevel=1) as text:
        text.writelines(write_trace(program, machine))
    from_text = simulate_file(file, machine, profile, latency)
    from_nest = time_stream(program, machine, profile, latency)
    assert (from_text.cycles, from_text.prea, from_text.ref) == (from_nest.cycles, from_nest.prea, from_nest.ref)
    assert from_text.commands == from_nest.commands
    commands = stream(*read_trace(file, machine))
    assert time_stream(commands, machine, profile, latency) == from_nest


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
        ("x" * 5000, 201, "goes on beyond any command"),
    ],
)
def test_a_malformed_line_is_told_with_file_line_and_column(tmp_path, line, column, what):
    file = write(tmp_path, GOOD + line + "\nREADRES\n")
    with pytest.raises(TraceError) as error:
        simulate_file(file, PIM, "artifact")
    assert f"{file}, line 3, column {column}: " in str(error.value)
    assert what in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_blank_lines_blanks_and_carriage_returns_do_not_matter(tmp_path):
    plain = write(tmp_path, GOOD + "0x00000040 COMP\nREADRES\n", "plain.pim")
    odd = write(tmp_path, "\n" + GOOD.replace("\n", "  \r\n") + "  0x00000040\tCOMP \n\n \nREADRES", "odd.pim")
    assert simulate_file(plain, PIM) == simulate_file(odd, PIM)


def test_command_order_errors_name_line_and_index(tmp_path):
    file = write(tmp_path, "\n" + GOOD + "\nREADRES\n")
    with pytest.raises(CommandOrderError, match=r"line 5, command 2: READRES of nothing"):
        simulate_file(file, PIM, "strict")
    machine = dataclasses.replace(PIM, rows=10000)
    file = write(tmp_path, GOOD + "0x0bfff800 G_ACT1\n")
    with pytest.raises(CommandOrderError, match=r"line 3, command 2: G_ACT of row 16383, outside of 0 to 9999"):
        simulate_file(file, machine, "strict")
    assert simulate_file(file, machine, "artifact").commands.g_act == 2


@pytest.mark.parametrize("name", ["bad.pim", "bad.pim.gz"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(min_size=1, max_size=600))
def test_random_bytes_are_an_error_or_an_answer(tmp_path, name, data):
    outcome = result_or_error(write(tmp_path, data, name))
    if isinstance(outcome, PimflowError):
        assert name in str(outcome)
        return
    counts = outcome.commands
    commands = counts.gwrite + counts.g_act + counts.comp + counts.readres
    assert commands == sum(bool(line.strip(b" \t\r")) for line in data.split(b"\n"))


def result_or_error(file):
    try:
        return simulate_file(file, PIM)
    except PimflowError as error:
        return error


def test_broken_gzip_files(tmp_path):
    whole = path("random-15").read_bytes()
    cycles = {simulate_file(write(tmp_path, whole, "whole.gz"), PIM).cycles}
    for keep in (3, 10, 100, len(whole) // 2, len(whole) - 1):
        file = write(tmp_path, whole[:keep], "cut.pim.gz")
        with pytest.raises(TraceError, match=r"cut\.pim\.gz, after line \d+: gzip data is broken"):
            simulate_file(file, PIM)
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 0xFF
    with pytest.raises(TraceError):
        simulate_file(write(tmp_path, bytes(changed), "changed.pim.gz"), PIM)
    with pytest.raises(TraceError, match="is not a gzip file"):
        simulate_file(write(tmp_path, GOOD, "plain.pim.gz"), PIM)
    assert cycles == {EXPECTED["random-15"]["gwrite_hidden"]["cycles"]}


def test_missing_file_and_folder(tmp_path):
    for place in (tmp_path / "none.pim", tmp_path):
        with pytest.raises(TraceError, match=f"cannot read {place}"):
            simulate_file(place, PIM)


def test_a_long_trace_takes_bounded_memory(tmp_path, monkeypatch):
    """25,000 lines, most of them new, and one line of 8 MB of zero bytes: a MB or two while they are read."""
    monkeypatch.setattr(trace_timing, "_MOST_KNOWN", 512)
    acts = tuple(GAct(group, row(0, ("t", 1))) for group in range(4))
    program = stream(gwrite(16), Loop("t", 4096, (*acts, COMP, READRES)))
    file = tmp_path / "long.pim.gz"
    with gzip.open(file, "wt", compresslevel=1) as text:
        text.writelines(write_trace(program, PIM))
    bomb = tmp_path / "bomb.pim.gz"
    bomb.write_bytes(gzip.compress(bytes(8 << 20), 1))
    tracemalloc.start()
    result = simulate_file(file, PIM, "strict")
    with pytest.raises(TraceError, match="line 1, column 201"):
        simulate_file(bomb, PIM)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.commands.comp == 4096
    assert peak < 3 << 20


def test_memories_that_overflow_change_nothing(tmp_path, monkeypatch):
    want = simulate_file(path("random-00"), PIM, "artifact")
    monkeypatch.setattr(trace_timing, "_MOST_KNOWN", 3)
    monkeypatch.setattr(trace_timing, "_MOST_STATES", 5)
    assert simulate_file(path("random-00"), PIM, "artifact") == want


def test_every_command_of_a_file_is_counted(tmp_path):
    program = stream(gwrite(16), SWEEP, comps(5), READRES, gwrite(16))
    file = write(tmp_path, "".join(write_trace(program, PIM)))
    assert simulate_file(file, PIM).commands.as_json() == {"GWRITE": 2, "G_ACT": 4, "COMP": 5, "READRES": 1}
