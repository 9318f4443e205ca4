"""`pimflow targets`: the machines that ship with pimflow or are installed."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import print_data, print_json, say
from pimflow.cli.parsing import Parser, add_json
from pimflow.report.targets import targets_json, targets_text
from pimflow.targets import every_target


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser("targets", help="list the machines that pimflow knows, or show one")
    actions = parser.add_subparsers(dest="action", metavar="[list]|show")
    parser.set_defaults(run=run, json=False)
    parser.default_action = "list"
    listing = actions.add_parser("list", help="list names and descriptions (the default)")
    add_json(listing)
    listing.set_defaults(run=run)
    show = actions.add_parser("show", help="show a whole target, with comments and sources")
    show.add_argument("name", metavar="NAME|FILE.toml")
    show.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the machines, or show one."""
    return _show(arguments.name) if arguments.action == "show" else _list(arguments)


def _show(name: str) -> int:
    import pimflow

    print_data((pimflow.target_text(name),))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    targets = every_target()
    if arguments.json:
        print_json("targets", {"targets": targets_json(targets)}, arguments.command)
    elif not arguments.quiet:
        say(targets_text(targets))
    return 0
