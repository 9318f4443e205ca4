"""`pimflow trace`: the program that a unit executes for a node, as text."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import print_data
from pimflow.cli.parsing import Parser, whole_number


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "trace",
        help="write the PIM commands of a node as text",
        description="Writes the commands of one PIM channel as text, one per line, as `pimflow simulate` reads them.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder of `pimflow compile`")
    parser.add_argument("node", metavar="NODE", help="a node that runs on PIM")
    parser.add_argument(
        "--channel", type=whole_number, default=0, metavar="C", help="number of the PIM channel (default: 0)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the commands, one by one as they are expanded."""
    import pimflow

    print_data(pimflow.load(arguments.folder).trace(arguments.node, arguments.channel))
    return 0
