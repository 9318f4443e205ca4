"""Garbage is collected less often in a compilation, whoever starts it, and as often as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

import pimflow
from pimflow.garbage import OBJECTS_OF_A_MODEL, rare_collections


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield
    gc.set_threshold(*before)


def test_the_highest_number_counts() -> None:
    with rare_collections(5000):
        with rare_collections(1000):
            assert gc.get_threshold() == (5000, 9, 8)
        with rare_collections(9000):
            assert gc.get_threshold() == (9000, 9, 8)
        assert gc.get_threshold() == (5000, 9, 8)
        gc.set_threshold(10)
    with rare_collections(100):
        assert gc.get_threshold() == (700, 9, 8), "restored, and not lowered"
    assert gc.get_threshold() == (700, 9, 8)


def test_threads_do_not_restore_what_others_found() -> None:
    first_in, second_in, first_out = Barrier(2), Barrier(2), Barrier(2)
    seen: list[int] = []

    def first() -> None:
        with rare_collections(5000):
            first_in.wait()
            second_in.wait()
        first_out.wait()

    def second() -> None:
        first_in.wait()
        with rare_collections(2000):
            second_in.wait()
            first_out.wait()
            seen.append(gc.get_threshold()[0])

    threads = [Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, gc.get_threshold()[0]) == ([2000], 700)


def test_an_error_restores_it() -> None:
    with pytest.raises(ValueError, match="wrong"), rare_collections():
        raise ValueError("wrong")
    assert gc.get_threshold()[0] == 700


def test_compiling_from_python_does_not_look_for_garbage_all_the_time() -> None:
    seen: list[int] = []
    pimflow.compile("zoo:toy", use_cache=False, progress=lambda _: seen.append(gc.get_threshold()[0]))
    assert set(seen) == {OBJECTS_OF_A_MODEL}
    assert gc.get_threshold() == (700, 9, 8)


def test_neither_does_comparing_policies() -> None:
    seen: list[int] = []
    pimflow.compare("zoo:toy", use_cache=False, progress=lambda _: seen.append(gc.get_threshold()[0]))
    assert OBJECTS_OF_A_MODEL in seen, "in every search"
    assert gc.get_threshold() == (700, 9, 8)
