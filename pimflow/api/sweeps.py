"""Sweeps: many points at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pimflow.api.reports import html_report
from pimflow.bundle.files import json_text, path_argument
from pimflow.bundle.source import model_source
from pimflow.compiler import compile_with
from pimflow.data import Limits, read_argument
from pimflow.search.progress import receiver_of
from pimflow.sweeps.engines import engine_for
from pimflow.sweeps.evaluate import options_of
from pimflow.sweeps.folder import sweep_folder, write_generated
from pimflow.sweeps.page.page import sweep_page
from pimflow.sweeps.result import SweepResult
from pimflow.sweeps.run import Setup, Tell, run_study
from pimflow.sweeps.store import Store
from pimflow.sweeps.study import Point, Study
from pimflow.version import document

TABLE, DOCUMENT, PAGE = "points.csv", "sweep.json", "report.html"
REPORTS = "reports"
_MAX_JOBS = 1 << 16


def sweep(
    study: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    reports: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SweepResult:
    """Evaluates many machines, models, graphs and policies, and finds the best by several objectives.

    Args:
        study: a sweep file, or its keys as a dictionary.
        folder: where every point is saved as soon as it is known, and the results as CSV, JSON and a page. An
            interrupted sweep continues where it stopped, and an extended one computes only what is new. None saves
            nothing.
        jobs: number of processes; by default one per core if joblib is installed, else only this one.
        scheduler: address of a Dask scheduler to use instead of local processes.
        reports: number of points of the fronts to write HTML reports for.
        progress: called with a line of text from time to time.

    Returns:
        A row per point.

    Raises:
        ArgumentError: an argument is of another type.
        OptionError: the study is not valid, or needs a package that is not installed.
        OutputError: the folder holds something else, or cannot be written.
        PimflowError: a model or a graph cannot be read at all.
    """
    keys = read_argument("study", Any, study) if isinstance(study, Mapping) else None
    parsed = Study.of(keys) if keys is not None else Study.load(path_argument(study, "study"))
    place = None if folder is None else path_argument(folder, "folder")
    jobs = read_argument("jobs", Annotated[int, Limits(least=1, most=_MAX_JOBS)] | None, jobs)
    engine = engine_for(jobs, read_argument("scheduler", str | None, scheduler))
    setup = Setup.of(parsed)  # before the folder is made: a sweep that cannot start leaves nothing
    count, tell = read_argument("reports", Annotated[int, Limits(least=0)], reports), receiver_of(progress)
    with sweep_folder(place) as store:
        result = run_study(parsed, setup, store, engine, tell)
        if place is not None:
            _write(place, store, result, count, tell)
    return result


def _write(folder: Path, store: Store, result: SweepResult, reports: int, tell: Tell) -> None:
    """Writes the results from the store. The page comes last: it lists the reports that exist."""
    made = {TABLE: result.csv(), DOCUMENT: json_text(document("sweep", result.as_json()))}
    write_generated(folder, store, made)
    wanted = {result.found[index].outcome.key: result.found[index].point for index in _best(result, reports)}
    for number, (key, point) in enumerate(wanted.items(), start=1):
        name = f"{REPORTS}/{key}.html"
        if not (folder / name).exists():
            tell(f"report {number} of {len(wanted)}: {point.model}")
            write_generated(folder, store, {name: _report(point, result.study)})
    there = (f"{REPORTS}/{at.outcome.key}.html" for at in result.found)
    links = {name[len(REPORTS) + 1 : -len(".html")]: name for name in there if (folder / name).exists()}
    write_generated(folder, store, {PAGE: sweep_page(result, links)})


def _best(result: SweepResult, count: int) -> list[int]:
    """Up to `count` points of the fronts: the first of every front, then the second of every front, and so on."""
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*(one.points for one in result.fronts)))
    return list(dict.fromkeys(index for index in in_turn if index is not None))[:count]


def _report(point: Point, study: Study) -> str:
    compiled = compile_with(model_source(point.model), options_of(point, study.options))
    return html_report(compiled).html
