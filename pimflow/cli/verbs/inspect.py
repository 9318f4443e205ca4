"""`pimflow inspect`: which nodes of a model can run on PIM."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import print_json
from pimflow.cli.parsing import Parser, add_json, add_model
from pimflow.report.tables import number, render_table


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "inspect",
        help="which nodes can go to PIM, and why the others cannot",
        description="Which nodes of a model can go to PIM, and why the others cannot.",
    )
    add_model(parser)
    add_options(parser, only=("target", "shapes"))
    parser.add_argument("--text", action="store_true", help="print the model in the compiler's text form instead")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Inspects and prints."""
    from pimflow.compiler import inspect_model

    report = inspect_model(arguments.model, **keywords_of(arguments))
    if arguments.text:
        print(report.text_form(), end="")
        return 0
    if arguments.json:
        print_json(report.as_json())
        return 0
    rows = [
        (item.name, item.op, item.shape, number(item.macs / 1e6, 2) if item.macs else "-", item.verdict)
        for item in report.nodes
    ]
    print(render_table(("node", "op", "output", "MMACs", "PIM"), rows, right=(3,)))
    able = [item for item in report.nodes if item.leaves_host]
    share = 100 * sum(item.macs for item in able) / max(1, sum(item.macs for item in report.nodes))
    print(f"\n{len(able)} of {len(report.nodes)} nodes can go to PIM, with {share:.1f} % of the multiply-accumulates")
    for reason, count in Counter(item.reason for item in report.nodes if not item.leaves_host).most_common():
        print(f"  {count:4d}  {reason}")
    return 0
