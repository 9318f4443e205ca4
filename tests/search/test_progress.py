"""Progress messages of a search: shares, time left, and nothing that it cannot know."""

from __future__ import annotations

from pimflow.search.progress import SearchProgress


class Clock:
    """A clock that advances when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def recorded_progress(budget_s: float | None = None) -> tuple[SearchProgress, Clock, list[str]]:
    clock, lines = Clock(), list[str]()
    progress = SearchProgress("auto", lines.append, budget_s, clock)
    progress.begins(4000)
    return progress, clock, lines


def test_the_remaining_time_follows_from_the_pace() -> None:
    progress, clock, lines = recorded_progress()
    clock.now += 10
    progress.priced(1000, 4000)
    assert lines == [
        "search: auto: 0 of 4,000 candidates priced (0 %)",
        "search: auto: 1,000 of 4,000 candidates priced (25 %), about 30 s left",
    ]
    clock.now += 190
    progress.priced(2000, 4000)
    assert lines[-1].endswith("(50 %), about 3 min left")


def test_a_time_budget_limits_the_estimate() -> None:
    progress, clock, lines = recorded_progress(budget_s=15)
    clock.now += 10
    progress.priced(1000, 4000)
    assert lines[-1].endswith("about 5 s left")
    assert not progress.out_of_time
    clock.now += 6
    assert progress.out_of_time


def test_it_is_reported_at_most_ten_times_a_second_and_at_the_end() -> None:
    progress, clock, lines = recorded_progress()
    for done in range(1, 4001):
        clock.now += 0.001
        progress.priced(done, 4000)
    assert 35 <= len(lines) <= 42
    assert lines[-1] == "search: auto: 4,000 of 4,000 candidates priced (100 %)"


def test_no_time_is_guessed_from_an_instant() -> None:
    progress, clock, lines = recorded_progress()
    clock.now += 0.2
    progress.priced(10, 4000)
    assert lines[-1].endswith("(0 %)")


def test_a_closer_look_has_no_known_end() -> None:
    progress, clock, lines = recorded_progress()
    clock.now += 1
    progress.refined(64)
    what = "promising candidates and variations examined; their total is not known yet"
    assert lines[-1] == f"search: auto: 64 {what}"
    progress.refined(65)
    assert len(lines) == 2


def test_a_list_has_no_known_end_either() -> None:
    progress, clock, lines = recorded_progress()
    clock.now += 1
    progress.listed(3000)
    assert lines[-1] == "search: auto: 3,000 candidates listed"
    progress.listed(3001)
    assert len(lines) == 2


def test_nothing_to_price_is_no_division_by_zero() -> None:
    progress, _, lines = recorded_progress()
    progress.begins(0)
    assert lines[-1] == "search: auto: 0 of 0 candidates priced"
