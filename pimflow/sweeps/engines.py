"""The engines of a sweep: this process, processes of this machine (joblib), or a cluster (Dask)."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from pimflow.errors import OptionError
from pimflow.runtime.execute.background import cores
from pimflow.sweeps.evaluate import Task, evaluate
from pimflow.sweeps.store import Outcome

Done = tuple[Task, list[Outcome]]
Engine = Callable[[Iterable[Task]], Iterator[Done]]
_AHEAD = 4
"""The number of tasks queued per worker, so that none is idle."""
_MAX_DEATHS = 2
"""How many processes may die while working on a task alone before it is given up: it may need more memory than there
is."""
_TIMEOUT_S = 10
_previous_hooks: list[Callable[[threading.ExceptHookArgs], Any]] = []
_DIED = "its process died, possibly out of memory; try fewer jobs (-j)"


def engine_for(jobs: int | None, scheduler: str | None) -> Engine:
    """The engine that a sweep runs on.

    Args:
        jobs: the number of processes; None is one per core if joblib is installed, otherwise only this process.
        scheduler: the address of a Dask scheduler to use instead of local processes.

    Raises:
        OptionError: a required package is not installed, or no scheduler answers.
    """
    if scheduler is not None:
        return _cluster(scheduler)
    if jobs is None:
        jobs = cores() if _has_joblib() else 1
    elif jobs > 1 and not _has_joblib():
        raise OptionError(f"{jobs} jobs need joblib", "type: pip install 'pimflow[sweep]', or use -j 1")
    return _in_process if jobs == 1 else _processes(jobs)


def _has_joblib() -> bool:
    try:
        import joblib  # noqa: F401
    except ImportError:
        return False
    return True


def _in_process(tasks: Iterable[Task]) -> Iterator[Done]:
    for task in tasks:
        yield task, evaluate(task)


def _work(task: Task) -> Done:
    return task, evaluate(task)


def _with_path(path: tuple[str, ...], work: Callable[[Task], Done], task: Task) -> Done:
    """Work with the given module search path: loky keeps processes, with their own paths, from one sweep to the
    next."""
    sys.path[:] = path
    return work(task)


def _processes(jobs: int) -> Engine:
    """Processes of joblib. If one dies, the tasks in progress are tried again one by one before the rest."""

    def run(tasks: Iterable[Task]) -> Iterator[Done]:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        waiting = iter(tasks)
        _mute_manager()
        while True:
            in_flight: dict[str, Task] = {}
            try:
                yield from _pooled(jobs, waiting, in_flight)
                return
            except BrokenProcessPool:
                for task in list(in_flight.values()):
                    yield _isolated(task)

    return run


def _isolated(task: Task) -> Done:
    """Run one task in a process of its own, which shows whether it is the one that kills processes."""
    from joblib.externals.loky.process_executor import BrokenProcessPool

    for _ in range(_MAX_DEATHS):
        try:
            ((_, outcomes),) = _pooled(2, iter([task]), {})
        except BrokenProcessPool:
            continue
        return task, outcomes
    return task, _failed(task)


def _failed(task: Task) -> list[Outcome]:
    return [Outcome(key, "failed", _DIED, {}, {}, 0.0) for key in task.keys]


def _pooled(jobs: int, tasks: Iterable[Task], in_flight: dict[str, Task]) -> Iterator[Done]:
    """Run tasks in a pool of joblib; `in_flight` has the tasks that were handed out and have not come back, by first
    key."""
    from joblib import Parallel, delayed

    def handed_out() -> Generator[Any, None, None]:
        for task in tasks:
            in_flight[task.keys[0]] = task
            yield delayed(_with_path)(tuple(sys.path), _work, task)

    pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch=_AHEAD * jobs)
    for task, outcomes in pool(handed_out()):
        in_flight.pop(task.keys[0], None)
        yield task, outcomes


def _mute_manager() -> None:
    """Suppress the traceback of the thread by which loky feeds its processes: it fails when tasks are taken back."""
    hook = threading.excepthook
    if hook is not _hook_without_manager:
        _previous_hooks.append(hook)
        threading.excepthook = _hook_without_manager


def _hook_without_manager(error: threading.ExceptHookArgs) -> None:
    if error.thread is None or error.thread.name != "ExecutorManagerThread":
        _previous_hooks[-1](error)


def _cluster(address: str) -> Engine:
    """Workers of a Dask cluster, which repeats the tasks of a worker that dies."""
    try:
        from distributed import Client
    except ImportError:
        raise OptionError("a scheduler needs Dask", "type: pip install 'pimflow[cluster]'") from None
    try:
        client = Client(address, timeout=_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OptionError(f"no Dask scheduler answers at {address!r}: {error}", "check the address") from None

    def run(tasks: Iterable[Task]) -> Iterator[Done]:
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        waiting = iter(tasks)
        with client:
            ahead = _AHEAD * max(1, sum(client.nthreads().values()))
            in_flight: dict[Any, Task] = {}

            def submit(count: int) -> list[Any]:
                fresh = {client.submit(_work, task, pure=False): task for task in itertools.islice(waiting, count)}
                in_flight.update(fresh)
                return list(fresh)

            coming = as_completed(submit(ahead), loop=client.loop)
            for future in coming:
                task = in_flight.pop(future)
                try:
                    yield future.result()
                except KilledWorker:
                    yield task, _failed(task)
                coming.update(submit(1))

    return run
