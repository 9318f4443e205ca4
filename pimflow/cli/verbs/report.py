"""`pimflow report`: an output folder as one HTML page, or two side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pimflow.cli.output import Progress, output_file, print_data, say
from pimflow.cli.parsing import Parser, whole_number
from pimflow.errors import OptionError

_FORMATS = ("html", "model-explorer")


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "report",
        help="write an output folder up as one HTML page: what runs where, how much faster, and why",
        description="Writes a self-contained HTML file: where the time and energy go, what runs when, and every node\n"
        "with the reason why it runs there. With a second folder, it shows the differences between the two.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another output folder to compare it with")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.html",
        help="the file to write (default: NAME.html in the current folder; -: stdout)",
    )
    parser.add_argument("--verify", action="store_true", help="verify the values too, and show the result on the page")
    parser.add_argument(
        "--what-if",
        type=whole_number,
        metavar="N",
        help="price alternatives for the N most expensive nodes (default: all that matter)",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="html",
        help="an HTML page, or node data for Model Explorer to show on model.onnx (default: html)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the page and write it."""
    import pimflow
    from pimflow.bundle.files import check_new

    what_if = {} if arguments.what_if is None else {"what_if": arguments.what_if}
    path = output_file(arguments.output or _default(arguments))
    if path is not None:
        check_new(path)
    if arguments.format != "html":
        return _write_node_data(arguments, path)
    with Progress(quiet=arguments.quiet) as progress:
        report = pimflow.html_report(
            arguments.folder, arguments.other, verify=arguments.verify, progress=progress, **what_if
        )
        if path is not None:
            report.save(path)
    if path is None:
        print_data((report.html,))
    elif not arguments.quiet:
        say(f"written to {path}  ({len(report.html.encode()) / 1e3:,.0f} kB; open it in a browser)")
    return 0


def _write_node_data(arguments: argparse.Namespace, path: Path | None) -> int:
    import pimflow
    from pimflow.bundle.files import json_text, write_new_file

    if arguments.other or arguments.verify or arguments.what_if is not None:
        raise OptionError("node data describe a single folder", "leave out the others, or --format")
    text = json_text(pimflow.load(arguments.folder).node_data())
    if path is None:
        print_data((text,))
        return 0
    write_new_file(path, text.encode())
    if not arguments.quiet:
        say(f"written to {path}  (open it in Model Explorer over {Path(arguments.folder) / 'model.onnx'})")
    return 0


def _default(arguments: argparse.Namespace) -> str:
    folders = (arguments.folder, arguments.other) if arguments.other else (arguments.folder,)
    names = [Path(folder).absolute().name.removesuffix(".pimflow") for folder in folders]
    return f"{'-to-'.join(names)}.{'html' if arguments.format == 'html' else 'json'}"
