"""`pimflow opt`: passes over a model or a graph in text form."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import output_file, print_data, print_json, say
from pimflow.cli.parsing import Parser, add_json
from pimflow.cli.stdin import STDIN, stdin_bytes
from pimflow.errors import OptionError, TextError
from pimflow.options import DEBUGGING

_EPILOG = """MODEL is an ONNX file, zoo:NAME, a graph in text form (FILE.pimir), or - for such a text on stdin.

examples:
  pimflow opt zoo:toy -p cleanup
  pimflow opt zoo:toy -p 'cleanup,md-dp-split{node=conv1 gpu_rows=5},movement-elimination' -o split.pimir
  pimflow opt split.pimir -p fold-constants --verify-each -o split.onnx
"""


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "opt",
        help="run passes over a model or a graph in text form",
        description="Runs passes over a graph, in the order given, and prints the graph in text form.",
        epilog=_EPILOG,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="what to run the passes over (see below)")
    parser.add_argument(
        "-p", "--passes", metavar="PASS,...", default="", help="passes to run, such as a,b{option=1 other=[x, y]}"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE.onnx or FILE.pimir (default: text on stdout)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output file if it exists")
    parser.add_argument("--inline", action="store_true", help="write all constants out in full")
    parser.add_argument(
        "--constants",
        metavar="FILE.npz",
        help="the constants that the text leaves out (default: MODEL.npz, if it exists)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say what each pass left unchanged, and why")
    parser.add_argument("--list", action="store_true", help="list all passes with their options and exit")
    add_options(parser, only=("shapes", "fixed", "seed", DEBUGGING))
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the passes and print or write the graph; or list the passes."""
    if arguments.list:
        return _list(arguments)
    if arguments.json:
        raise OptionError("--json is for --list: a graph is printed as text", "leave --json out")
    if arguments.model is None:
        raise OptionError("there is no MODEL to run passes over", "give one, or --list")
    import pimflow
    from pimflow.bundle.graphs import check_graph_file, graph_of_text, graph_text, write_graph

    output = output_file(arguments.output)
    if output is not None:
        check_graph_file(output, arguments.overwrite)
    on_stdin = arguments.model == STDIN
    keywords: Any = keywords_of(arguments)
    result = pimflow.opt(
        graph_of_text(_stdin_text(), arguments.constants, "stdin") if on_stdin else arguments.model,
        arguments.passes,
        constants=None if on_stdin else arguments.constants,
        **keywords,
    )
    for record in result.records if arguments.verbose and not arguments.quiet else ():
        say(f"{record.name}: {'changed' if record.changed else 'no change'}", sys.stderr)
        for note in record.notes:
            say(f"  {note}", sys.stderr)
    if output is None:
        print_data((graph_text(result.graph, arguments.inline),))
    else:
        write_graph(result.graph, output, inline=arguments.inline, overwrite=arguments.overwrite)
        if not arguments.quiet:
            say(str(output))
    return 0


def _stdin_text() -> str:
    try:
        return stdin_bytes().decode()
    except UnicodeDecodeError as error:
        raise TextError(f"stdin is not text: {error}", "give a graph in text form") from None


def _list(arguments: argparse.Namespace) -> int:
    from pimflow.report.pass_list import all_passes_help, pass_list_text

    if arguments.json:
        print_json("passes", {"passes": [item.as_json() for item in all_passes_help()]}, arguments.command)
    elif not arguments.quiet:
        say(pass_list_text())
    return 0
