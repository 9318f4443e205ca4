"""`pimflow explain`: one node of a compiled model, its alternatives and their prices."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "explain",
        help="explain why a node runs where it does, and price the alternatives",
        description="Lists the ways to run one node of a compiled model, what each costs on its own, and which keys "
        "of the machine would have to change for a slower unit to catch up.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder")
    parser.add_argument("node", metavar="NODE", help="a node of the original model")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain and print."""
    import pimflow

    with Progress(quiet=arguments.quiet) as progress:
        explanation = pimflow.explain(arguments.folder, arguments.node, progress=progress)
    show("explain", explanation, arguments)
    return 0
