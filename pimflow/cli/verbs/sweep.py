"""`pimflow sweep`: many machines, models and policies, and the best of them."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, positive_int, whole_number
from pimflow.options import option_texts


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "sweep",
        help="many machines, models and policies, and the best of them",
        description="Plans every point of a sweep file, keeps each as soon as it is known, and shows which are best. A "
        "sweep that was broken off goes on where it was.",
    )
    parser.add_argument("study", metavar="SWEEP.toml", help="what to vary; docs/sweep.md says how it is written")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder of the points and the results")
    jobs = option_texts()["jobs"]
    parser.add_argument(
        jobs.short, jobs.flag, type=positive_int, metavar="N", help="processes (default: one for every core)"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, in place of processes here")
    parser.add_argument(
        "--reports",
        type=whole_number,
        default=8,
        metavar="N",
        help="write the page of `pimflow report` for N points of the fronts (default: 8)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sweeps; prints counts, fronts and effects."""
    import pimflow

    with Progress(quiet=arguments.quiet) as progress:
        result = pimflow.sweep(
            arguments.study,
            arguments.output,
            jobs=arguments.jobs,
            scheduler=arguments.scheduler,
            reports=arguments.reports,
            progress=progress,
        )
    show("sweep", result, arguments)
    return 1 if result.count("failed") else 0
