"""`pimflow report`: an output folder as one HTML page, or two side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pimflow.cli.output import Progress, say
from pimflow.cli.parsing import Parser, whole_number
from pimflow.errors import OptionError

_FORMATS = ("html", "model-explorer")


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "report",
        help="an output folder as one HTML page: what ran where, how much faster and why",
        description="Writes one HTML file that any browser opens, without network: where the time goes,\n"
        "what runs when, every node and why it runs there, energy. With a second folder, all of it as a difference.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another, to be shown beside it")
    parser.add_argument("-o", "--output", metavar="FILE.html", help="the file (default: NAME.html in this folder)")
    parser.add_argument(
        "--verify", action="store_true", help="compare values with the original's, and say so on the page"
    )
    parser.add_argument(
        "--what-if",
        type=whole_number,
        metavar="N",
        help="price alternatives of the N most expensive nodes (default: all that matter)",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="html",
        help="a page, or node data that Model Explorer puts over model.onnx (default: html)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes the page and writes it."""
    import pimflow
    from pimflow.bundle.files import check_new

    asked = {} if arguments.what_if is None else {"what_if": arguments.what_if}
    path = Path(arguments.output or _default(arguments))
    check_new(path)
    if arguments.format != "html":
        return _write_node_data(arguments, path)
    with Progress(quiet=arguments.quiet) as progress:
        report = pimflow.html_report(
            arguments.folder, arguments.other, verify=arguments.verify, progress=progress, **asked
        )
        report.save(path)
    if not arguments.quiet:
        say(f"written to {path}  ({len(report.html.encode()) / 1e3:,.0f} kB; open it in a browser)")
    return 0


def _write_node_data(arguments: argparse.Namespace, path: Path) -> int:
    import pimflow
    from pimflow.bundle.files import json_text, write_whole

    if arguments.other or arguments.verify or arguments.what_if is not None:
        raise OptionError("node data are of one folder alone, as it is", "leave out the others, or --format")
    write_whole(path, json_text(pimflow.load(arguments.folder).node_data()).encode())
    if not arguments.quiet:
        say(f"written to {path}  (open it in Model Explorer over {Path(arguments.folder) / 'model.onnx'})")
    return 0


def _default(arguments: argparse.Namespace) -> str:
    folders = (arguments.folder, arguments.other) if arguments.other else (arguments.folder,)
    names = [Path(folder).absolute().name.removesuffix(".pimflow") for folder in folders]
    return f"{'-to-'.join(names)}.{'html' if arguments.format == 'html' else 'json'}"
