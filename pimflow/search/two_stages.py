"""A lower bound on the time of pipelines of two stages over a chain of nodes: the shortest schedule of two chains.

Each stage is a chain of parts that run one after the other, each on a given device, and a device runs one part at a
time. That is a job shop with two jobs. In the plane whose axes are the progress of each job, a schedule is a path from
the origin to the end of both: diagonal where both run, parallel to an axis where only one does, and around every
rectangle in which both would use the same device (S. B. Akers, "A graphical approach to production scheduling
problems", Operations Research 4, 1956). The shortest path turns at corners of rectangles only, so it is found from one
corner to the next.

Where the second stage also reads rows that the first one makes (a window reaches over its upper edge), it waits for
them: the path stays on one side of a staircase, along which only the first job runs.
"""

from __future__ import annotations


class Step:
    """A part of a chain, and those behind it. Chains with the same end share its steps, which are equal only to
    themselves.

    Args:
        us: how long the part takes; more than 0.
        device: where it runs.
        rest: the step behind it; None at the end of the chain.
        held: until this part is done, the last `held` steps of the second chain do not begin; in the first chain only,
            and never more of them than the part before it holds.
    """

    __slots__ = ("device", "held", "left", "left_us", "rest", "us")

    def __init__(self, us: float, device: str, rest: Step | None, held: int = 0) -> None:
        self.us = us
        self.device = device
        self.rest = rest
        self.held = held
        self.left: int = 1 if rest is None else 1 + rest.left
        self.left_us: float = us if rest is None else us + rest.left_us


class Schedules:
    """The shortest schedules of two chains; chains with the same ends share what is known of these."""

    def __init__(self) -> None:
        self._known: dict[tuple[Step, Step], float] = {}

    def shortest_us(self, one: Step | None, other: Step | None) -> float:
        """The makespan of the shortest schedule of two chains without pre-emption."""
        if one is None or other is None:
            return _left_us(one) + _left_us(other)
        return self._known.get((one, other)) or self._from_corner(one, other)

    def _from_corner(self, one: Step, other: Step) -> float:
        """Both chains run until one ends or they meet at a device; there either goes first, and the other begins
        after. While the second chain is held, only the first one runs."""
        corner = one, other
        passed, one_us, other_us = 0.0, one.us, other.us
        while True:
            is_held = other.left <= one.held and other_us == other.us
            if one.device == other.device and not is_held:
                passed += self._from_meeting(one, one_us, other, other_us)
                break
            if is_held or one_us <= other_us:
                passed, rest = passed + one_us, one.rest
                other_us -= 0.0 if is_held else one_us
                if rest is None:
                    passed += other_us + _left_us(other.rest)
                    break
                one, one_us = rest, rest.us
            else:
                passed, one_us, rest = passed + other_us, one_us - other_us, other.rest
                if rest is None:
                    passed += one_us + _left_us(one.rest)
                    break
                other, other_us = rest, rest.us
        self._known[corner] = passed
        return passed

    def _from_meeting(self, one: Step, one_us: float, other: Step, other_us: float) -> float:
        """The least time from where two chains meet at a device, given what is left of both steps there.

        If either goes first, the other takes all that is left of it after that: often that alone shows which of them
        goes first. That is all, too, if the one that goes first ends there.
        """
        known, one_rest, other_rest = self._known, one.rest, other.rest
        one_first_us, other_first_us = one_us + other.left_us, other_us + one.left_us
        if one_rest is not None and (one_first_us <= other_first_us or other_rest is None):
            one_first_us = one_us + (known.get((one_rest, other)) or self._from_corner(one_rest, other))
            one_rest = None
        if other_rest is not None and other_first_us < one_first_us:
            other_first_us = other_us + (known.get((one, other_rest)) or self._from_corner(one, other_rest))
        if one_rest is not None and one_first_us < other_first_us:
            one_first_us = one_us + (known.get((one_rest, other)) or self._from_corner(one_rest, other))
        return min(one_first_us, other_first_us)


def steps_of(step: Step | None) -> int:
    """The number of steps from one to the end of its chain."""
    return 0 if step is None else step.left


def _left_us(step: Step | None) -> float:
    """The time of a step and all behind it."""
    return 0.0 if step is None else step.left_us
