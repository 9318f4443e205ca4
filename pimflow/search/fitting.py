"""The cheapest cover that fits into the memories of units, with only those candidates priced that may matter.

The weights of all kernels of a plan are in a unit's memory at the same time. Plans seldom come near the limit, so the
dynamic program ignores it at first. If its plan does not fit, three steps find one that does:

1. Every candidate is charged for the share of the memories that it uses, at one price for every memory. The price rises
   until one cheapest cover fits and another does not: given two covers that are cheapest at two prices, the next price
   is the one at which both cost the same. By Lagrangian duality no cover that fits is cheaper than the charged optimum
   minus the price of all memories.
2. Between two positions that are boundaries of both covers, each is as cheap as the other at that price: the cheaper
   segments, which need more memory, are taken from the cover that does not fit, as far as there is room.
3. The gap between that cover and the bound is searched by a dynamic program over (cost, shares) that drops dominated
   partial covers and those that the bound excludes. It ends with an optimum unless too many remain.

A candidate is refined when a cover contains it, and in the last step when a cover with it may be cheaper than the best
known one. Until then it is represented by lower bounds on its cost and memory, so it never costs less at any price than
it is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pimflow.records import NamedTuple, dataclass
from pimflow.search.pool import Entry, Pool, Taken

Payload = TypeVar("Payload")
Array = npt.NDArray[np.float64]
Shares = tuple[float, ...]

_STEPS = 60
MAX_LABELS = 500_000
_ROUNDING = 1e-12
_AT_ONCE = 64
"""How many candidates to refine before checking again which ones are still promising."""


@dataclass(frozen=True)
class Fitting(Generic[Payload]):
    """A cover that fits, its cost, and a lower bound on the cost of all such covers: the same number if it is an
    optimum."""

    cost: float
    chosen: tuple[Taken[Payload], ...]
    bound: float


class Refiner(Protocol[Payload]):
    """Refines what is known about candidates."""

    def has_time(self) -> bool:
        """Whether more candidates may be priced; after that, those that are not priced are left out of covers."""

    def refine(self, entry: Entry[Payload]) -> None:
        """Price a candidate, or raise its lower bound."""

    def min_kept(self, payload: Payload) -> Mapping[str, int]:
        """A lower bound on what a candidate stores in each memory, by device."""

    def kept(self, payload: Payload) -> Mapping[str, int]:
        """What a priced candidate stores in each memory, by device, exactly."""


def cover_that_fits(
    pool: Pool[Payload], refiner: Refiner[Payload], capacities: Mapping[str, int], most_labels: int = MAX_LABELS
) -> Fitting[Payload] | None:
    """The cheapest cover that stores no more than the memories hold.

    Args:
        pool: the candidates, some of which cover everything.
        refiner: refines them.
        capacities: the capacity of every memory.
        most_labels: how many partial covers to consider before settling for the best cover found so far.

    Returns:
        None if no cover was found that fits.
    """
    space = _Space(pool, refiner, capacities)
    found = _by_price(space)
    if found is None:
        return None
    best = _close_gap(space, found, most_labels) or found
    chosen = tuple([Taken(space.entries[step.place], step.shift) for step in best.cover.steps])
    return Fitting(best.cover.cost, chosen, min(best.bound, best.cover.cost))


class _Step(NamedTuple):
    """A candidate in a cover: its place in the space, and its shift in positions."""

    place: int
    shift: int


@dataclass(frozen=True)
class _Cover:
    """The candidates of a cover or of a part of one: their cost, and the share of every memory that they use."""

    cost: float
    shares: Shares
    steps: tuple[_Step, ...]

    def charged(self, price: float) -> float:
        """The cost plus the price of the shares."""
        return self.cost + price * sum(self.shares)


@dataclass(frozen=True)
class _Incumbent:
    """The best cover that fits so far, a lower bound on all covers that fit, and the price that gives the bound."""

    cover: _Cover
    bound: float
    price: float


class _Space(Generic[Payload]):
    """The candidates of a pool, stretch by stretch, as columns of costs and shares: lower bounds until `sure`.

    Attributes:
        entries: the candidates.
        stretches: the positions that they may cover.
        stretch: by candidate, the index of its stretch.
        shares: by candidate, its share of every memory.
    """

    def __init__(self, pool: Pool[Payload], refiner: Refiner[Payload], capacities: Mapping[str, int]) -> None:
        self.pool = pool
        self.refiner = refiner
        self.memories = len(capacities)
        self._capacities = capacities
        self.stretches = pool.stretches
        self.entries = [entry for some in pool.stretches for entry in sorted(some.entries, key=attrgetter("place"))]
        sizes = [len(some.entries) for some in pool.stretches]
        self._filled = np.flatnonzero(sizes)
        self._first = np.cumsum([0, *sizes])
        self.stretch = np.repeat(np.arange(len(sizes)), sizes)
        self.costs: Array = np.array([entry.us for entry in self.entries])
        self.shares: Array = np.array([self._shares(refiner.min_kept(entry.payload)) for entry in self.entries])
        self._loads: Array = self.shares.sum(axis=1)
        self.sure = np.zeros(len(self.entries), bool)

    def charged(self, price: float) -> Array:
        """Lower bounds on the costs of all candidates with the price of their shares."""
        total: Array = self.costs + price * self._loads
        return total

    def least(self, charged: Array) -> list[float]:
        """By stretch, the minimum cost of its candidates."""
        found = np.full(len(self.stretches), math.inf)
        found[self._filled] = np.minimum.reduceat(charged, self._first[self._filled])
        least: list[float] = found.tolist()
        return least

    def cheapest(self, price: float) -> _Cover | None:
        """The cheapest cover at a price, with everything in it known exactly; None if there is no cover."""
        covers = self.pool.covers_at(self.least(self.charged(price)))
        for tries in accumulate(repeat(1), lambda before, _: 2 * before):
            found = covers.cheapest()
            if not found and math.isinf(covers.costs()[-1]):
                return None
            best = {number: self._best_of(number, price) for number in dict.fromkeys(number for number, _ in found)}
            unsure = [number for number, place in best.items() if not self.sure[place]]
            if not unsure:
                return self.cover([_Step(best[number], shift) for number, shift in found])
            for number in unsure:
                covers.change(number, self._refine_within(number, price, tries))
        raise AssertionError("every candidate becomes exact after enough refinements")

    def _refine_within(self, number: int, price: float, tries: int) -> float:
        """Refine the cheapest candidates of a stretch, at most a given number of times; the least that it costs then,
        with the price of its shares."""
        for _ in range(tries):
            place = self._best_of(number, price)
            if self.sure[place]:
                break
            self.refine(place)
        place = self._best_of(number, price)
        return float(self.costs[place] + price * self._loads[place])

    def _best_of(self, number: int, price: float) -> int:
        mine = slice(self._first[number], self._first[number + 1])
        charged = self.costs[mine] + price * self._loads[mine]
        return int(self._first[number] + np.argmin(charged))

    def cover(self, steps: Sequence[_Step]) -> _Cover:
        """The cover of candidates that are known exactly."""
        places = [step.place for step in steps]
        shares = self.shares[places].sum(axis=0)
        return _Cover(math.fsum(self.costs[places].tolist()), tuple(shares.tolist()), tuple(steps))

    def stop(self, step: _Step) -> int:
        """The position where a candidate of a cover ends."""
        return self.entries[step.place].stop + step.shift

    def _shares(self, kept: Mapping[str, int]) -> list[float]:
        return [kept.get(device, 0) / amount for device, amount in self._capacities.items()]

    def refine(self, place: int) -> None:
        """Refine a candidate by one step: its cost until it is priced, then the memory that it uses."""
        entry = self.entries[place]
        if entry.priced:
            self.shares[place] = self._shares(self.refiner.kept(entry.payload))
            self._loads[place] = self.shares[place].sum()
            self.sure[place] = True
        elif self.refiner.has_time():
            self.refiner.refine(entry)
            self.costs[place] = entry.us
        else:
            self.costs[place] = math.inf


def _fits(shares: Iterable[float]) -> bool:
    return all(share <= 1 + _ROUNDING for share in shares)


def _by_price(space: _Space[Payload]) -> _Incumbent | None:
    """The best cover that can be found with a price for memory."""
    low = space.cheapest(0.0)
    if low is None or _fits(low.shares):
        return None if low is None else _Incumbent(low, low.cost, 0.0)
    high: _Cover | None = None
    price, best = (low.cost or 1.0) / sum(low.shares), (low.cost, 0.0)
    for _ in range(_STEPS):
        cover = space.cheapest(price)
        assert cover is not None, "there is a cover at price 0"
        charged = cover.charged(price)
        best = max(best, (charged - price * space.memories, price))
        if high is not None and charged >= high.charged(price) * (1 - _ROUNDING):
            break
        low, high = (low, cover) if _fits(cover.shares) else (cover, high)
        more = math.inf if high is None else sum(low.shares) - sum(high.shares)
        if more <= 0:
            break
        price = 4 * price if high is None else (high.cost - low.cost) / more
    return None if high is None else _Incumbent(_filled(space, high, low), *best)


def _filled(space: _Space[Payload], fits: _Cover, more: _Cover) -> _Cover:
    """A cover that fits, improved by cheaper segments of one that does not, as far as there is room: the largest first.
    Segments lie between positions that are boundaries of both covers."""
    parts = [tuple(map(space.cover, pair)) for pair in _segments(space, fits.steps, more.steps)]
    order = sorted(range(len(parts)), key=lambda place: sum(parts[place][0].shares) - sum(parts[place][1].shares))
    used = fits.shares
    for place in order:
        mine, other = parts[place]
        shares = tuple([now - own + its for now, own, its in zip(used, mine.shares, other.shares, strict=True)])
        if other.cost < mine.cost and _fits(shares):
            used, parts[place] = shares, (other, other)
    return space.cover([step for part, _ in parts for step in part.steps])


def _segments(
    space: _Space[Payload], one: Sequence[_Step], other: Sequence[_Step]
) -> Iterator[tuple[Sequence[_Step], Sequence[_Step]]]:
    """The steps of two covers between each position that is a boundary of both and the next."""
    ends = [[space.stop(step) for step in steps] for steps in (one, other)]
    places = [{stop: place + 1 for place, stop in enumerate(stops)} for stops in ends]
    mine = its = 0
    for stop in ends[0]:
        if stop in places[1]:
            yield one[mine : places[0][stop]], other[its : places[1][stop]]
            mine, its = places[0][stop], places[1][stop]


@dataclass(frozen=True, slots=True)
class _Label:
    """A cover of the first positions, as its last candidate and the cover before that."""

    cost: float
    shares: Shares
    last: _Step | None = None
    before: _Label | None = None

    def dominates(self, other: _Label) -> bool:
        """Whether its shares are no larger; it is the one of the two that costs no more."""
        return all(mine <= theirs for mine, theirs in zip(self.shares, other.shares, strict=True))

    def steps(self) -> list[_Step]:
        """All candidates of the cover, in order."""
        found, label = [], self
        while label.last is not None and label.before is not None:
            found.append(label.last)
            label = label.before
        return found[::-1]


def _close_gap(space: _Space[Payload], incumbent: _Incumbent, most_labels: int) -> _Incumbent | None:
    """The cheapest cover that fits; None if there are more than `most_labels` partial covers, or no time."""
    if incumbent.cover.cost - incumbent.bound <= _ROUNDING * incumbent.cover.cost:
        return incumbent
    ceiling = incumbent.cover.cost + incumbent.price * space.memories
    near = _near(space, incumbent.price, ceiling)
    if near is None or len(near) > most_labels:
        return None
    rest = space.pool.behind(space.least(space.charged(incumbent.price)))
    starting: dict[int, list[_Step]] = {}
    for step in near:
        starting.setdefault(space.entries[step.place].start + step.shift, []).append(step)
    labels: dict[int, list[_Label]] = {0: [_Label(0.0, (0.0,) * space.memories)]}
    for position in sorted(starting):
        alive = _undominated(labels.pop(position, []))
        for step in starting[position]:
            its_cost, its_shares = float(space.costs[step.place]), space.shares[step.place].tolist()
            stop = space.stop(step)
            for label in alive:
                shares = tuple([a + b for a, b in zip(label.shares, its_shares, strict=True)])
                cost = label.cost + its_cost
                if _fits(shares) and cost + incumbent.price * sum(shares) + rest[stop] < ceiling:
                    labels.setdefault(stop, []).append(_Label(cost, shares, step, label))
                    most_labels -= 1
        if most_labels < 0:
            return None
    found = min(labels.get(len(rest) - 1, ()), key=attrgetter("cost"), default=None)
    better = incumbent.cover if found is None or found.cost >= incumbent.cover.cost else space.cover(found.steps())
    return _Incumbent(better, better.cost, incumbent.price)


def _near(space: _Space[Payload], price: float, ceiling: float) -> list[_Step] | None:
    """The candidates of covers that are charged less than a ceiling, all of them known exactly, in order.

    None if there is no time to price those that may be in one.
    """
    while True:
        charged = space.charged(price)
        least = space.least(charged)
        before, rest = np.array(space.pool.before(least)), np.array(space.pool.behind(least))
        around = [
            before[some.start + np.array(some.shifts)] + rest[some.stop + np.array(some.shifts)]
            for some in space.stretches
        ]
        through = charged + np.array([others.min() for others in around])[space.stretch]
        unsure = np.flatnonzero((through < ceiling) & ~space.sure)
        if not len(unsure):
            break
        if not space.refiner.has_time():
            return None
        for place in unsure[np.argsort(through[unsure], kind="stable")][: max(_AT_ONCE, len(unsure) // 4)]:
            space.refine(int(place))
    found = []
    for place in np.flatnonzero(through < ceiling).tolist():
        number = space.stretch[place]
        shifts = np.array(space.stretches[number].shifts)[charged[place] + around[number] < ceiling]
        found += [_Step(place, shift) for shift in shifts.tolist()]
    return found


def _undominated(labels: list[_Label]) -> list[_Label]:
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda label: (label.cost, label.shares)):
        rivals = kept[-1:] if len(label.shares) == 1 else kept  # with one memory, the last one kept uses the least
        if not any(better.dominates(label) for better in rivals):
            kept.append(label)
    return kept
