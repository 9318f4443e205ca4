"""`pimflow diff`: two output folders side by side."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import print_json, say
from pimflow.cli.parsing import Parser, add_json


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "diff",
        help="compare two output folders node by node",
        description="Shows which options and machine keys differ, the totals, and the nodes that run elsewhere or "
        "whose cost has changed. Nodes are matched by name, or else by what they compute.",
    )
    parser.add_argument("a", metavar="A", help="an output folder")
    parser.add_argument("b", metavar="B", help="another output folder")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all nodes that differ")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    import pimflow

    difference = pimflow.diff(arguments.a, arguments.b)
    if arguments.json:
        print_json("diff", difference.as_json(), arguments.command)
    elif not arguments.quiet:
        say(difference.text(verbose=arguments.verbose))
    return 0
