"""`pimflow simulate`: times command traces."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import print_json
from pimflow.cli.parsing import Parser, add_json, add_target, target_of
from pimflow.report.tables import number, render_table


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "simulate",
        help="time command traces",
        description="Cycles, commands and energy of command traces, one PIM channel each.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.pim[.gz]")
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plays the traces and prints what they cost."""
    from pimflow.runtime.newton.trace_timing import simulate_file

    pim = target_of(arguments).pim
    results = [(file, simulate_file(file, pim)) for file in arguments.files]
    if arguments.json:
        print_json([{"file": file, **result.as_json()} for file, result in results])
        return 0
    header = ("file", "cycles", "GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF", "energy (uJ)")
    rows = []
    for file, result in results:
        document = result.as_json()
        counts = [number(document["commands"][name], 0) for name in header[2:8]]
        rows.append((file, number(result.cycles, 0), *counts, number(document["energy_j"]["total"] * 1e6, 3)))
    print(render_table(header, rows, right=range(1, 9)))
    return 0
