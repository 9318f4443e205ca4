"""`pimflow compare`: search policies side by side."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_model
from pimflow.cli.stdin import given_model
from pimflow.options import DEBUGGING


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "compare",
        help="compare search policies side by side",
        description="Compares time, energy, speedups and where the nodes run under several policies.",
    )
    add_model(parser)
    parser.add_argument(
        "--policies", metavar="P,P,...", help="policies to compare (default: all that the target offers)"
    )
    add_options(parser, without=("policy", "seed", "check", "jobs", DEBUGGING))
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search with every policy and print a line for each."""
    import pimflow

    names = tuple(name.strip() for name in arguments.policies.split(",")) if arguments.policies else None
    with Progress(quiet=arguments.quiet) as progress:
        comparison = pimflow.compare(
            given_model(arguments.model), policies=names, progress=progress, **keywords_of(arguments)
        )
    show("compare", comparison, arguments)
    return 0
