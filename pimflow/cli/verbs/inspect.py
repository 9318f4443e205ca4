"""`pimflow inspect`: which nodes of a model can run on PIM."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import print_data, print_json, say
from pimflow.cli.parsing import Parser, add_json, add_model
from pimflow.cli.stdin import given_model


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "inspect",
        help="show which nodes can run on PIM, and why the others cannot",
        description="Shows which nodes of a model can run on PIM, and why the others cannot.",
    )
    add_model(parser, " an output folder,")
    add_options(parser, only=("target", "shapes", "fixed", "graph", "graph_as_input"))
    parser.add_argument(
        "--roofline", action="store_true", help="show each node's lower bound next to its modelled time"
    )
    parser.add_argument(
        "--text", action="store_true", help="print the model in the compiler's text form and nothing else"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Inspect and print."""
    import pimflow

    report = pimflow.inspect(given_model(arguments.model), **keywords_of(arguments))
    if arguments.text:
        print_data((report.text_form(),))
    elif arguments.json:
        print_json("inspect", report.as_json(), arguments.command)
    elif not arguments.quiet:
        say(report.roofline() if arguments.roofline else report.text())
    return 0
