"""Runs trials of all lanes in turn, and counts their results."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.verdict import Case, Verdict

SEEDS = 1_000_000
"""The maximum number of trials of one campaign; the first has the seed `campaign * SEEDS`."""


@dataclass
class Lane:
    """The results of a lane's trials so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Campaign:
    """Lanes and their results; every lane gets the same share of the time.

    Args:
        lanes: trials by name.
        say: called with a line for every finding as it occurs.
    """

    lanes: Mapping[str, Case]
    say: Callable[[str], None]
    done: dict[str, Lane] = field(default_factory=dict)

    def run(self, seed: int, seconds: float) -> None:
        """Run trials until the time is up; the next trial is from the lane that has used the least time.

        Args:
            seed: the campaign; another one has other trials.
            seconds: when to stop.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = min(self.lanes, key=lambda lane: self.lane(lane).seconds)
            self.trial(name, seed * SEEDS + self.lane(name).outcomes.total())

    def run_each(self, seed: int, trials: int) -> None:
        """Run the first trials of every lane."""
        for name in self.lanes:
            for number in range(trials):
                self.trial(name, seed * SEEDS + number)

    def trial(self, name: str, seed: int) -> Verdict:
        """Run one trial of a lane."""
        lane, started = self.lane(name), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            verdict = self.lanes[name](seed, Path(folder))
        lane.seconds += time.monotonic() - started
        lane.outcomes[verdict.outcome] += 1
        if verdict.finding:
            lane.findings.append(f"{name}: {verdict.finding}  (again: python -m fuzz --lane {name} --trial {seed})")
            self.say(f"FINDING {lane.findings[-1]}")
        return verdict

    def lane(self, name: str) -> Lane:
        """The results of a lane."""
        return self.done.setdefault(name, Lane())

    @property
    def findings(self) -> list[str]:
        """All findings, one line each."""
        return [line for lane in self.done.values() for line in lane.findings]

    def text(self) -> str:
        """The counts by lane and outcome."""
        lines = []
        for name, lane in self.done.items():
            total = lane.outcomes.total()
            lines.append(f"{name}: {total} trials in {lane.seconds:.0f} s, {len(lane.findings)} findings")
            lines += [f"  {count:6d}  {outcome}" for outcome, count in lane.outcomes.most_common()]
        return "\n".join([*lines, f"findings in all: {len(self.findings)}"])
