"""`pimflow front`: the Pareto front of plans in time and energy."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, print_json, say
from pimflow.cli.parsing import Parser, add_json, add_model, number
from pimflow.cli.stdin import given_model
from pimflow.data import Limits
from pimflow.options import DEBUGGING


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "front",
        help="show the Pareto front of time against energy",
        description="Finds the plans of a policy that no other plan beats in both time and energy, fastest first.",
    )
    add_model(parser)
    add_options(parser, without=("objective", "seed", "check", "jobs", DEBUGGING))
    parser.add_argument(
        "--within",
        type=number(float, Limits(least=0)),
        default=0.01,
        metavar="PERCENT",
        help="leave out slower plans that save at most this much energy over one shown (default: 0.01; 0: none)",
    )
    add_json(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print all plans, not only some of many")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search at a series of energy prices, then between them, and print a line per plan."""
    import pimflow

    with Progress(quiet=arguments.quiet) as progress:
        found = pimflow.front(
            given_model(arguments.model), within_percent=arguments.within, progress=progress, **keywords_of(arguments)
        )
    if arguments.json:
        print_json("front", found.as_json(), arguments.command)
    elif not arguments.quiet:
        say(found.text(verbose=arguments.verbose))
    return 0
