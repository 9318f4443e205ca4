"""Times a text trace line by line, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pimflow.codegen.newton.commands import CommandCounts, Comp, GAct, GWrite
from pimflow.codegen.newton.trace import LineParser, trace_lines
from pimflow.errors import CommandOrderError, choice
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles import GWRITE_LATENCIES, TimingProfile, timing_profile
from pimflow.runtime.newton.timing.legality import first_out_of_range
from pimflow.runtime.newton.timing.result import CycleParts, StreamTiming, stream_timing
from pimflow.runtime.newton.timing.rules import IllegalCommand, Rules, State, Step
from pimflow.runtime.newton.timing.tally import read
from pimflow.targets import PimSpec

_BLANK = 4  # a line without a command; GWRITE, G_ACT, COMP and READRES are 0 to 3


@dataclass(frozen=True)
class CacheSizes:
    """Sizes of the caches used while reading a file; a full cache is cleared."""

    lines: int = 1 << 14  # distinct lines with their meaning
    states: int = 1 << 16  # states of the rules, with their steps


DEFAULT_CACHE_SIZES = CacheSizes()


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The timing of one trace, which is that of one channel."""

    cycles: int
    time_us: float
    commands: CommandCounts
    prea: int
    ref: int
    energy: EnergyBreakdown
    parts: CycleParts
    comps_on_closed_rows: int

    @property
    def counters(self) -> dict[str, int]:
        """Counts of the commands of the trace and of those that the controller adds."""
        return {**self.commands.as_json(), "PREA": self.prea, "REF": self.ref}

    @property
    def violations(self) -> dict[str, int]:
        """COMPs that ran while some bank group had no open row."""
        return {"comps_on_closed_rows": self.comps_on_closed_rows}

    @property
    def energy_mj(self) -> float:
        """Total energy in millijoules."""
        return self.energy.total_mj

    def as_json(self) -> dict[str, Any]:
        """The values that `pimflow simulate --json` prints, except the file's name."""
        return {
            "cycles": self.cycles,
            "time_us": self.time_us,
            "commands": self.counters,
            **self.violations,
            "cycles_spent": self.parts.as_json(),
            "energy_mj": self.energy_mj,
            "energy_parts_mj": self.energy.parts_mj,
        }


def simulate_file(
    path: str | Path,
    pim: PimSpec,
    timing: str | None = None,
    gwrite_latency: str | None = None,
    cache_sizes: CacheSizes = DEFAULT_CACHE_SIZES,
    *,
    reopens_rows: bool = False,
) -> TraceResult:
    """Time and energy of a text trace, plain or gzip, of any length.

    Args:
        path: the trace of one channel.
        pim: the machine.
        timing: the name of a timing profile; the machine's default if None.
        gwrite_latency: "hidden" or "exposed"; the machine's if None.
        cache_sizes: the sizes of the caches.
        reopens_rows: whether the controller reopens rows that a refresh closed, if the profile leaves the choice.
            Streams of `auto` are timed this way under `artifact`, although the published controller does not do so.

    Raises:
        TraceError: the file cannot be read, or a line is malformed; names file, line and column of text.
        CommandOrderError: the machine would refuse a command; names file, line and the command's index.
        OptionError: no such profile or latency.
    """
    profile = timing_profile(pim, timing)
    latency = choice("GWRITE latency", gwrite_latency or pim.gwrite_latency, GWRITE_LATENCIES)
    result = _TraceTimer(path, profile.rules(latency, reopens_rows), profile, cache_sizes).run()
    return TraceResult(
        result.cycles,
        result.cycles / pim.clock_mhz,
        result.commands,
        result.prea,
        result.ref,
        profile.energy(result),
        result.parts,
        result.comps_on_closed_rows,
    )


class _ParsedLine(NamedTuple):
    """The parsed content of a line, as far as it matters to timing."""

    code: int
    kind: int  # of command, or _BLANK
    size: int  # bytes that a GWRITE writes


class _TraceTimer:
    """Times one file. The parsed content of each distinct line is cached."""

    def __init__(self, path: str | Path, rules: Rules, profile: TimingProfile, cache_sizes: CacheSizes) -> None:
        self._path, self._pim, self._cache_sizes = path, profile.pim, cache_sizes
        self._rules = rules
        self._checks_addresses = profile.checks_addresses
        self._parser = LineParser(path, profile.pim)
        self._known: dict[bytes, _ParsedLine] = {}
        self._counts = [0] * (_BLANK + 1)
        self._line = 0

    def run(self) -> StreamTiming:
        rules, known, counts = self._rules, self._known, self._counts
        state, phase = rules.initial(), rules.interval
        tally = written = 0
        for line in trace_lines(self._path):
            self._line += 1
            code, kind, size = known.get(line) or self._parse_and_cache(line)
            if kind == _BLANK:
                continue
            step = state.steps.get(code) or self._step(state, code)
            counts[kind] += 1
            written += size
            if step.threshold < phase:
                state = step.state
                phase -= step.cycles
                tally += step.tally
                continue
            struck = rules.strike(state, code, phase)
            state, phase = struck.state, struck.phase
            tally += struck.tally
        # The phase counts from the last issue to the first request that has not been served.
        last = rules.interval * (1 + read(tally).ref) - phase
        end = rules.finish(state, phase)
        return stream_timing(last + end.cycles, tally + end.tally, CommandCounts(*counts[:_BLANK]), written)

    def _parse_and_cache(self, line: bytes) -> _ParsedLine:
        if len(self._known) >= self._cache_sizes.lines:
            self._known.clear()
        parsed = self._known[line] = self._parse(line)
        return parsed

    def _parse(self, line: bytes) -> _ParsedLine:
        command = self._parser.command(line, self._line)
        if command is None:
            return _ParsedLine(0, _BLANK, 0)
        outside = first_out_of_range((command,), self._pim) if self._checks_addresses else None
        if outside is not None:
            raise self._refused(outside.reason)
        code = self._rules.code(command)
        if isinstance(command, GWrite):
            return _ParsedLine(code, 0, command.elements * self._pim.element_bytes)
        return _ParsedLine(code, 1 if isinstance(command, GAct) else 2 if isinstance(command, Comp) else 3, 0)

    def _step(self, state: State, code: int) -> Step:
        try:
            step = self._rules.step(state, code)
        except IllegalCommand as refusal:
            raise self._refused(str(refusal)) from None
        return step if self._rules.size() < self._cache_sizes.states else self._rules.forget(step)

    def _refused(self, reason: str) -> CommandOrderError:
        where = f"{self._path}, line {self._line}, command {sum(self._counts)}"
        return CommandOrderError(f"{where}: {reason}", "the hardware would refuse it; correct the trace")
