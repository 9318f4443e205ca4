"""`pimflow simulate`: times command traces."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import show
from pimflow.cli.parsing import Parser, add_json, add_target, target_of


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "simulate",
        help="time command traces",
        description="Times command traces, each of one PIM channel, and counts their commands and energy.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.pim[.gz]")
    add_target(parser)
    parser.add_argument(
        "--reopen-rows",
        action="store_true",
        help="with `--timing artifact`: reopen rows that a refresh closed, as for the streams of `auto`",
    )
    parser.add_argument(
        "--operand",
        default="",
        metavar="TYPE",
        help="operand type that the traces were written for: int8 (default: the target's own type)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Time the traces and print their costs."""
    import pimflow

    reopen_rows, operand = arguments.reopen_rows, arguments.operand
    report = pimflow.simulate(arguments.files, target=target_of(arguments), reopen_rows=reopen_rows, operand=operand)
    show("simulate", report, arguments)
    return 0
