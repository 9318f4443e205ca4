"""`pimflow sweep`: evaluates many machines, models and policies, and finds the best of them."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, output_folder, show
from pimflow.cli.parsing import Parser, add_json, positive_int, whole_number
from pimflow.options import option_texts


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "sweep",
        help="explore many machines, models and policies, and show the best",
        description="Evaluates every point of a sweep file, saves each result as soon as it is known, and shows the "
        "best. An interrupted sweep continues where it stopped.",
    )
    parser.add_argument("study", metavar="SWEEP.toml", help="what to vary (see docs/sweep.md)")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the points and the results")
    jobs = option_texts()["jobs"]
    parser.add_argument(
        jobs.short, jobs.flag, type=positive_int, metavar="N", help="number of processes (default: one per core)"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="address of a Dask scheduler to use instead of local processes"
    )
    parser.add_argument(
        "--reports",
        type=whole_number,
        default=8,
        metavar="N",
        help="write an HTML report for N points of the fronts (default: 8)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep; print counts, fronts and effects."""
    import pimflow

    with Progress(quiet=arguments.quiet) as progress:
        result = pimflow.sweep(
            arguments.study,
            output_folder(arguments.output),
            jobs=arguments.jobs,
            scheduler=arguments.scheduler,
            reports=arguments.reports,
            progress=progress,
        )
    show("sweep", result, arguments)
    return 1 if result.count("failed") else 0
