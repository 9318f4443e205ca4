"""`pimflow compile`: compiles a model into an output folder."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, output_folder, print_json, say
from pimflow.cli.parsing import Parser, add_json, add_model
from pimflow.cli.stdin import given_model
from pimflow.errors import OptionError
from pimflow.garbage import OBJECTS_OF_A_MODEL
from pimflow.options import OptionKeywords, Options
from pimflow.report.tables import wrapped

if TYPE_CHECKING:
    import pimflow

_QUANTITIES = ("energy", "time")


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "compile",
        help="compile a model for a machine with PIM memory",
        description="Decides for each part of a model whether it runs on the GPU, on PIM or on both, rewrites the "
        "graph,\ngenerates the commands for PIM, and writes everything to a folder.",
    )
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="output folder (default: NAME.pimflow in this folder)")
    add_options(parser)
    parser.add_argument(
        "--by", choices=_QUANTITIES, help="break energy or time down by part, by kind of op and by node"
    )
    parser.add_argument("--verify", action="store_true", help="then verify the result, as `pimflow verify DIR` does")
    add_json(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print all nodes, with reasons")
    parser.set_defaults(run=run, collect_after=OBJECTS_OF_A_MODEL)


def run(arguments: argparse.Namespace) -> int:
    """Compile, save and print."""
    import pimflow
    from pimflow.api.places import check_place
    from pimflow.bundle.source import model_source

    if arguments.by and arguments.json:
        raise OptionError("--by is for the tables: --json has all parts", "leave --by or --json out")
    model = given_model(arguments.model)
    source = model_source(model)
    folder = output_folder(arguments.output or f"{source.name}.pimflow")
    keywords = keywords_of(arguments)
    without_graph: OptionKeywords = {**keywords, "graph": None}  # without the graph, which is slow to read
    check_place(folder, Options.of(**without_graph))
    with Progress(quiet=arguments.quiet) as progress:
        compiled = pimflow.compile(model, progress=progress, **keywords)
        compiled = replace(compiled, command=arguments.command)
        progress(f"writing {folder}")
        compiled.save(folder, progress=progress)
        found = _verified(folder, progress) if arguments.verify else None
    _tell(compiled, folder, found, arguments)
    return 0 if found is None or found.passed else 1


def _verified(folder: Path, progress: Progress) -> pimflow.Verification:
    from pimflow.api.outputs import verify_output

    return verify_output(folder, progress=progress)


def _tell(
    compiled: pimflow.CompiledModel, folder: Path, found: pimflow.Verification | None, arguments: argparse.Namespace
) -> None:
    if arguments.json:
        print_json("compile", compiled.document(str(folder)), arguments.command)
        return
    if arguments.quiet:
        return
    say(compiled.summary(verbose=arguments.verbose, by=arguments.by))
    if found is None:
        say(f"\nwritten to {folder}  (check it with: pimflow verify {shlex.quote(str(folder))})")
    else:
        say(f"\n{wrapped(found.text(), ' ' * 6)}\nwritten to {folder}")
