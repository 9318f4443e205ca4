"""`pimflow compile`: a model into an output folder."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, print_json, say
from pimflow.cli.parsing import Parser, add_json, add_model, add_quiet
from pimflow.cli.stdin import given_model
from pimflow.errors import OptionError

_QUANTITIES = ("energy", "time")


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "compile",
        help="compile a model for a machine with PIM memory",
        description="Decides for every part of a model whether it runs on the GPU, on PIM or on both, rewrites the "
        "graph,\ngenerates what PIM executes, and writes all of it to a folder.",
    )
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="output folder (default: NAME.pimflow in this folder)")
    add_options(parser)
    parser.add_argument(
        "--by", choices=_QUANTITIES, help="say what energy or time is spent on: by part, by kind of op, by node"
    )
    add_json(parser)
    add_quiet(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print all nodes, with reasons")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compiles, saves and prints."""
    import pimflow
    from pimflow.bundle.folder import check_output
    from pimflow.bundle.source import model_source

    if arguments.by and arguments.json:
        raise OptionError("--by is for the tables: --json has all parts", "leave --by or --json out")
    model = given_model(arguments.model)
    source = model_source(model)
    folder = Path(arguments.output or f"{source.name}.pimflow")
    check_output(folder)
    with Progress(quiet=arguments.quiet) as progress:
        compiled = pimflow.compile(model, progress=progress, **keywords_of(arguments))
        compiled = replace(compiled, command=arguments.command)
        progress(f"writing {folder}")
        compiled.save(folder)
    if arguments.json:
        print_json("compile", compiled.document(str(folder)), arguments.command)
        return 0
    if arguments.quiet:
        return 0
    say(compiled.summary(verbose=arguments.verbose, by=arguments.by))
    say(f"\nwritten to {folder}  (check it with: pimflow verify {shlex.quote(str(folder))})")
    return 0
