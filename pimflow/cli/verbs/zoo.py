"""`pimflow zoo`: the models that ship with pimflow."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from pimflow.cli.output import output_file, print_bytes, print_json, say
from pimflow.cli.parsing import Parser, add_json
from pimflow.report.tables import render_table


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser("zoo", help="list the models that ship with pimflow, or export one as ONNX")
    actions = parser.add_subparsers(dest="action", metavar="[list]|export")
    parser.set_defaults(run=run, json=False)
    parser.default_action = "list"
    listing = actions.add_parser("list", help="list names, inputs, parameters and multiply-accumulates (the default)")
    add_json(listing)
    listing.set_defaults(run=run)
    export = actions.add_parser("export", help="write a model as an ONNX file")
    export.add_argument("name", metavar="NAME")
    export.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write (default: NAME.onnx in the current folder; -: stdout)"
    )
    export.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the models, or write one."""
    if arguments.action == "export":
        return _export(arguments)
    return _list(arguments)


def _list(arguments: argparse.Namespace) -> int:
    import pimflow

    models = pimflow.zoo()
    if arguments.json:
        print_json("zoo", {"models": list(models)}, arguments.command)
    elif not arguments.quiet:
        say(_table(models))
    return 0


def _table(models: Sequence[Mapping[str, Any]]) -> str:
    rows = [(model["name"], model["input"], f"{model['parameters']:,}", f"{model['macs']:,}") for model in models]
    return render_table(("model", "input", "parameters", "MACs"), rows, right=(2, 3))


def _export(arguments: argparse.Namespace) -> int:
    from pimflow.api.machines import zoo_model
    from pimflow.bundle.files import write_new_file
    from pimflow.bundle.source import model_source, onnx_bytes

    source = model_source(f"zoo:{arguments.name}")
    path, data = output_file(arguments.output or f"{source.name}.onnx"), onnx_bytes(zoo_model(arguments.name))
    if path is None:
        print_bytes(data)
        return 0
    write_new_file(path, data)
    if not arguments.quiet:
        say(str(path))
    return 0
