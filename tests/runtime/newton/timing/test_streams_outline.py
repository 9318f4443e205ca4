"""The outlines that a mapping search times, shapes without operands, against the final streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import PimProgram, lower, newton_mappings
from pimflow.codegen.newton.commands import count_commands
from pimflow.codegen.newton.lowering import Outline, outline
from pimflow.errors import CommandOrderError
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.targets import load_target
from support.newton.timing import timer

PLAIN = load_target("pimflow").pim
PROBLEMS = (
    ConvProblem(1, 24, 144, 9, 9, (1, 1)),
    ConvProblem(2, 64, 40, 7, 7, (3, 3), (1, 1), (1, 1, 1, 1)),
    ConvProblem(1, 8, 128, 5, 5, (3, 3), groups=2),
    MatmulProblem(5, 1200, 72),
    MatmulProblem(3, 64, 300, batch=4, batched_rhs=True, constant_rhs=False),
)
MACHINES = {
    "plain": PLAIN,
    "two buffers": replace(PLAIN, buffers_per_channel=2),
    "free pairing": replace(PLAIN, any_slot_any_column=True),
    "halves of buffers": replace(PLAIN, buffer_parts=2),
    "a pool of buffers": replace(PLAIN, buffer_pool=True),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", ["artifact", "strict"])
def test_outlines_have_the_cycles_and_comps_of_their_streams(machine: str, profile: str) -> None:
    timing = timer(MACHINES[machine], profile)
    orders: Counter[str] = Counter()
    for problem in PROBLEMS:
        for made in outlines(problem, machine, profile):
            orders[made.mapping.order] += 1
            mapping, program = made.mapping, made.program()
            assert program.channel_classes == made.channel_classes
            for entry in program.classes:
                channel = entry.channels[0]
                whole = timing.time(entry.stream, mapping.gwrite_latency, mapping.reopens_rows, mapping.buffer_parts)
                assert timing.cycles_of(made, channel).cycles == whole.cycles
                assert timing.timing(made, channel) == whole
                assert made.comps(channel) == count_commands(entry.stream.body).comp
    assert set(orders) == {"rows", "fills", "latch"}


def test_mappings_with_one_difference_are_distinguished() -> None:
    """G_ACTs before a fill, and copies of its pixels; their fills and tiles are otherwise the same."""
    few, pim = MatmulProblem(2, 128, 300), MACHINES["free pairing"]
    copied = [entry.mapping for entry in candidates(few, timer(pim, "strict").profile) if entry.scheme.copied]
    tiled = [replace(mapping, runs=tuple(replace(run, copies=1) for run in mapping.runs)) for mapping in copied]
    published = newton_mappings(PROBLEMS[0], PLAIN, "newton++")
    ahead = [replace(mapping, acts_first=first) for mapping in published for first in range(PLAIN.bank_groups + 1)]
    for problem, machine, mappings in ((few, pim, copied + tiled), (PROBLEMS[0], PLAIN, ahead)):
        timing = timer(machine, "strict")
        told = set()
        for mapping in mappings:
            made = outline(problem, mapping, machine)
            assert isinstance(made, Outline)
            for entry in made.program().classes:
                whole = timer(machine, "strict").time(entry.stream, mapping.gwrite_latency, mapping.reopens_rows)
                assert timing.timing(made, entry.channels[0]) == whole
                told.add(whole)
        assert len(told) > 1


def test_addresses_are_checked_if_the_profile_requires_it() -> None:
    program = lower(PROBLEMS[0], newton_mappings(PROBLEMS[0], PLAIN, "newton++")[0], PLAIN)
    assert isinstance(program, PimProgram)
    beyond = replace(program, pim=replace(PLAIN, rows=program.rows - 1))
    strict = timer(PLAIN, "strict")
    strict.check_addresses(program)
    with pytest.raises(CommandOrderError, match="G_ACT of row"):
        strict.check_addresses(beyond)
    timer(PLAIN, "artifact").check_addresses(beyond)


def outlines(problem: MatrixProblem, machine: str, profile: str) -> list[Outline]:
    """A problem under Newton's mappings, and under every third of `auto`'s."""
    pim = MACHINES[machine]
    found = [entry.mapping for entry in candidates(problem, timer(pim, profile).profile)]
    mappings = [mapping for index, mapping in enumerate(found) if index % 3 == 0 or mapping.order == "latch"]
    mappings += [*newton_mappings(problem, pim, "newton+"), *newton_mappings(problem, pim, "newton++")]
    made = (outline(problem, mapping, pim) for mapping in dict.fromkeys(mappings))
    return [entry for entry in made if isinstance(entry, Outline)]
