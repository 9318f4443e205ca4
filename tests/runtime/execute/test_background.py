"""Work in a background thread."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from pimflow.cli import main
from pimflow.errors import ModelError, OptionError
from pimflow.options import Options
from pimflow.runtime.execute import background as module
from pimflow.runtime.execute.background import in_background


def test_block_and_work_run_concurrently() -> None:
    both = threading.Barrier(2, timeout=60)
    with in_background(both.wait, 2):
        both.wait()


def test_with_one_job_the_work_comes_first() -> None:
    done: list[str] = []
    with in_background(lambda: done.append("work"), 1):
        done.append("block")
    assert done == ["work", "block"]


@pytest.mark.parametrize("cores", [1, 2])
def test_the_default_is_a_job_for_every_core(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: cores)
    where: list[threading.Thread] = []
    with in_background(lambda: where.append(threading.current_thread()), None):
        pass
    assert (where[0] is threading.current_thread()) == (cores == 1)


def test_signals_go_to_the_main_thread() -> None:
    """A signal that another thread receives does not wake a sleeping main thread."""
    blocked: list[set[int]] = []
    with in_background(lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())), 2):
        pass
    assert blocked[0] >= {signal.SIGINT, signal.SIGTERM}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_the_work_needs_is_freed_when_it_is_done() -> None:
    class Needed:
        def use(self) -> None:
            pass

    needed = Needed()
    is_alive, done = weakref.ref(needed), threading.Event()
    weakref.finalize(needed, done.set)
    with in_background(needed.use, 2):
        del needed
        assert done.wait(60)
        assert is_alive() is None


def refuse() -> None:
    raise ModelError("the work")


@pytest.mark.parametrize("jobs", [1, 2])
def test_if_both_fail_the_works_error_is_raised(jobs: int) -> None:
    with pytest.raises(ModelError, match="the work"), in_background(refuse, jobs):
        raise OptionError("the block")
    with pytest.raises(ModelError, match="the work"), in_background(refuse, jobs):
        pass
    with pytest.raises(OptionError, match="the block"), in_background(list, jobs):
        raise OptionError("the block")


def test_a_block_can_check_for_errors() -> None:
    looked = threading.Event()

    def refuse_later() -> None:
        assert looked.wait(60)
        refuse()

    def checking(check: Callable[[], None]) -> None:
        check()
        looked.set()
        for _ in range(1000):
            time.sleep(0.01)
            check()
        pytest.fail("the block was not interrupted")

    with pytest.raises(ModelError, match="the work"), in_background(refuse_later, 2) as check:
        checking(check)
    assert looked.is_set()


def test_an_interrupted_block_waits_and_ignores_errors_of_the_work() -> None:
    with pytest.raises(KeyboardInterrupt), in_background(refuse, 2):
        raise KeyboardInterrupt
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]


def test_any_number_of_jobs_writes_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / str(jobs) for jobs in (1, 3)]
    for jobs, folder in zip(("1", "3"), folders, strict=True):
        assert main(["compile", "zoo:toy", "--policy", "md-dp", "-q", "--no-cache", "-j", jobs, "-o", str(folder)]) == 0
    one, three = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    )
    assert len(one) > 5
    assert one == three


@pytest.mark.parametrize("jobs", [0, 1.5, "two"])
def test_jobs_are_counted(jobs: object) -> None:
    with pytest.raises(OptionError, match="jobs"):
        Options.of(jobs=jobs)  # type: ignore[arg-type]
