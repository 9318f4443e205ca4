"""The verb opt: runs passes over a graph."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pimflow.cli.compile_verbs import add_debug, debug_of
from pimflow.cli.output import print_json
from pimflow.cli.parsing import Parser, add_json, seed_int
from pimflow.errors import OptionError

_EPILOG = """MODEL is an ONNX file, zoo:NAME, a graph in text form (FILE.pimir), or - for such a text on stdin.

examples:
  pimflow opt zoo:toy -p cleanup
  pimflow opt zoo:toy -p 'cleanup,md-dp-split{node=conv1 gpu_rows=5},movement-elimination' -o split.pimir
  pimflow opt split.pimir -p fold-constants --verify-each -o split.onnx
"""


def add_verbs(verbs: Any) -> None:
    """Adds this file's verb."""
    parser: Parser = verbs.add_parser(
        "opt",
        help="run passes over a model or a graph in text form",
        description="Runs passes over a graph, in the order given, and prints the graph in text form.",
        epilog=_EPILOG,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="what to run the passes over (see below)")
    parser.add_argument(
        "-p", "--passes", metavar="PASS,...", default="", help="passes, as in a,b{option=1 other=[x, y]}"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write FILE.onnx or FILE.pimir in place of stdout")
    parser.add_argument("--overwrite", action="store_true", help="replace the output file if it exists")
    parser.add_argument("--inline", action="store_true", help="spell out all constants of the text")
    parser.add_argument("--constants", metavar="FILE.npz", help="what the text elides (default: MODEL.npz, if any)")
    parser.add_argument("--shape", action="append", default=[], metavar="input:1x3x224x224|N=1", help="bind a shape")
    parser.add_argument("--seed", type=seed_int, default=0, metavar="N", help="seed of random inputs (default: 0)")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what each pass left as it was, and why")
    parser.add_argument("--list", action="store_true", help="list all passes with their options, and do nothing else")
    add_debug(parser)
    add_json(parser)
    parser.set_defaults(run=_opt)


def _opt(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list(arguments)
    if arguments.json:
        raise OptionError("--json is for --list: a graph is printed as text", "leave --json out")
    if arguments.model is None:
        raise OptionError("there is no MODEL to run passes over", "give one, or --list")
    from pimflow.bundle.graphs import check_graph_file, graph_of_text, graph_text, write_graph
    from pimflow.compiler import opt
    from pimflow.frontend import parse_shapes

    output = Path(arguments.output) if arguments.output else None
    if output is not None:
        check_graph_file(output, arguments.overwrite)
    on_stdin = arguments.model == "-"
    result = opt(
        graph_of_text(sys.stdin.read(), arguments.constants, "stdin") if on_stdin else arguments.model,
        arguments.passes,
        constants=None if on_stdin else arguments.constants,
        shapes=parse_shapes(arguments.shape),
        disabled_passes=arguments.disable_pass,
        seed=arguments.seed,
        debug=debug_of(arguments),
    )
    for record in result.records if arguments.verbose else ():
        print(f"{record.name}: {'changed' if record.changed else 'no change'}", file=sys.stderr)
        for note in record.notes:
            print(f"  {note}", file=sys.stderr)
    if output is None:
        sys.stdout.write(graph_text(result.graph, arguments.inline))
    else:
        write_graph(result.graph, output, inline=arguments.inline, overwrite=arguments.overwrite)
        print(output)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from pimflow.passes import PASSES
    from pimflow.report.pass_list import pass_help, pass_list_text

    kinds = PASSES.values()
    if arguments.json:
        print_json([pass_help(kind).as_json() for kind in kinds])
    else:
        print(pass_list_text(kinds))
    return 0
