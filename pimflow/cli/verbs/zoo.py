"""`pimflow zoo`: the models that ship with pimflow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pimflow.cli.output import print_json, say
from pimflow.cli.parsing import Parser, add_json
from pimflow.report.tables import render_table


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser("zoo", help="list the models that ship with pimflow, or write one as ONNX")
    actions = parser.add_subparsers(dest="action", metavar="[list]|export")
    parser.set_defaults(run=run, json=False)
    listing = actions.add_parser("list", help="names, inputs, parameters and multiply-accumulates (as without a word)")
    add_json(listing)
    listing.set_defaults(run=run)
    export = actions.add_parser("export", help="write a model as an ONNX file")
    export.add_argument("name", metavar="NAME")
    export.add_argument("-o", "--output", metavar="FILE", help="default: NAME.onnx in this folder")
    export.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lists the models, or writes one."""
    if arguments.action == "export":
        return _export(arguments.name, arguments.output)
    return _list(arguments.json)


def _list(as_json: bool) -> int:
    import pimflow_zoo

    entries = [pimflow_zoo.entry(name) for name in pimflow_zoo.names()]
    if as_json:
        print_json("zoo", {"models": [_entry_json(entry) for entry in entries]})
        return 0
    rows = [(entry.name, entry.input, f"{entry.parameters:,}", f"{entry.macs:,}") for entry in entries]
    say(render_table(("model", "input", "parameters", "MACs"), rows, right=(2, 3)))
    return 0


def _entry_json(entry: Any) -> dict[str, Any]:
    import pimflow_zoo

    figures = {"input": entry.input, "parameters": entry.parameters, "macs": entry.macs}
    return {"name": entry.name, "description": pimflow_zoo.describe(entry.name), **figures}


def _export(name: str, output: str | None) -> int:
    from pimflow.bundle.files import write_whole
    from pimflow.bundle.source import model_source

    source = model_source(f"zoo:{name}")
    path = Path(output or f"{source.name}.onnx")
    content = source.content
    assert not isinstance(content, (str, bytes))
    write_whole(path, content.SerializeToString(deterministic=True))
    say(str(path))
    return 0
