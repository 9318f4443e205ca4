"""The published controller, one clock cycle at a time: slow, plain, and the oracle of the fast engine.

Takes commands as words ("GWRITE", "G_ACT0", "COMP", "READRES"); shares no code with the package.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The published machine's constraints, in cycles."""

    gwrite_to_next: int = 1
    gwrite_to_comp: int = 51
    act_to_act: int = 17
    act_to_comp: int = 11
    comp_to_comp: int = 2
    comp_to_readres: int = 1
    readres_to_gwrite: int = 6
    readres_latency: int = 13
    pre_to_act: int = 11
    ref_to_act: int = 350
    refresh_interval: int = 1900
    bank_groups: int = 4
    reopens_rows: bool = False


def constraints(machine: Published) -> dict[str, list[tuple[str, int]]]:
    acts = [f"G_ACT{group}" for group in range(machine.bank_groups)]
    table: dict[str, list[tuple[str, int]]] = {
        "GWRITE": [(name, machine.gwrite_to_next) for name in ["GWRITE", *acts]] + [("COMP", machine.gwrite_to_comp)],
        "COMP": [("COMP", machine.comp_to_comp), ("READRES", machine.comp_to_readres)],
        "READRES": [("GWRITE", machine.readres_to_gwrite)],
        "PREA": [("G_ACT0", machine.pre_to_act), ("REF", machine.pre_to_act)],
        "REF": [("G_ACT0", machine.ref_to_act), ("REF", machine.ref_to_act)],
    }
    for group, name in enumerate(acts):
        table[name] = [("COMP", machine.act_to_comp)]
        if group + 1 < machine.bank_groups:
            table[name].append((acts[group + 1], machine.act_to_act))
    return table


def simulate(trace: Sequence[str], machine: Published | None = None) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    """(cycles, commands issued by name, every issue as (clock, name))."""
    machine = machine or Published()
    table = constraints(machine)
    ready: Counter[str] = Counter()
    waiting: deque[str] = deque()
    results: deque[int] = deque()
    issued: Counter[str] = Counter()
    log: list[tuple[int, str]] = []
    clock = position = requests = last_request = 0
    open_groups: set[str] = set()
    shut_groups: set[str] = set()  # closed by a refresh, for a controller that reopens rows
    refreshed = 0  # when the last refresh ends
    refreshing = read_to_the_end = False
    while not read_to_the_end or waiting or results or requests:
        if position < len(trace) and len(waiting) < 32:
            waiting.append(trace[position])
            position += 1
        elif position == len(trace):
            read_to_the_end = True
        clock += 1
        if results and results[0] <= clock:
            results.popleft()
        if clock - last_request >= machine.refresh_interval:
            requests += 1
            last_request = clock
        if refreshing and not requests:
            refreshing = False
        if not waiting and requests and not refreshing:
            refreshing = True
        candidate = waiting[0] if waiting else ""
        if refreshing:
            candidate = "PREA" if open_groups else "REF"
        inserted = candidate == "COMP" and bool(shut_groups)
        if inserted:
            candidate = min(shut_groups)
        held = machine.reopens_rows and candidate.startswith("G_ACT") and clock < refreshed
        if not candidate or ready[candidate] > clock or held:
            continue
        issued[candidate] += 1
        log.append((clock, candidate))
        for follower, cycles in table[candidate]:
            ready[follower] = max(ready[follower], clock + cycles)
        if candidate == "PREA":
            shut_groups |= open_groups if machine.reopens_rows else set()
            open_groups.clear()
            continue
        if candidate == "REF":
            requests -= 1
            refreshed = clock + machine.ref_to_act
            continue
        if candidate.startswith("G_ACT"):
            open_groups.add(candidate)
            shut_groups.discard(candidate)
        if inserted:
            continue
        waiting.popleft()
        if candidate == "COMP" and len(open_groups) < machine.bank_groups:
            issued["COMP on closed rows"] += 1
        if candidate == "READRES":
            results.append(clock + machine.readres_latency)
            refreshing = True
    return clock, issued, log
