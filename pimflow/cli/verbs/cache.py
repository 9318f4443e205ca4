"""`pimflow cache`: the price cache on disk."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pimflow.cli.output import print_json, say
from pimflow.cli.parsing import Parser, add_json
from pimflow.data import encode
from pimflow.report.tables import number, render_fields

if TYPE_CHECKING:
    from pimflow.search.price_cache import CacheInfo


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser("cache", help="show or clear what is cached on disk: prices and graph statistics")
    actions = parser.add_subparsers(dest="action", metavar="[info]|clear")
    parser.set_defaults(run=run, json=False)
    parser.default_action = "info"
    info = actions.add_parser("info", help="show the folder, the number of records and the size (the default)")
    add_json(info)
    info.set_defaults(run=run)
    clear = actions.add_parser("clear", help="delete all of it")
    clear.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Describe the cache, or clear it."""
    import pimflow

    if arguments.action == "clear":
        removed = pimflow.cache_clear()
        if not arguments.quiet:
            say(f"removed {removed} {'file' if removed == 1 else 'files'} of the cache")
        return 0
    info = pimflow.cache_info()
    if arguments.json:
        print_json("cache", encode(info), arguments.command)
    elif not arguments.quiet:
        say(_fields(info))
    return 0


def _fields(info: CacheInfo) -> str:
    counts = {"files": info.files, "records": info.records, "damaged": info.damaged, "graphs": info.graphs}
    fields = [("folder", info.folder), *((name, str(count)) for name, count in counts.items())]
    return render_fields([*fields, ("bytes", number(info.bytes, 0))])
