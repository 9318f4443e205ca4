"""Verbs about machines and command streams: targets, layer, simulate, cache."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import print_json
from pimflow.cli.parsing import Parser, add_json, add_target, target_of
from pimflow.report.tables import number, render_table


def add_verbs(verbs: Any) -> None:
    """Adds this file's verbs."""
    _add_targets(verbs)
    _add_layer(verbs)
    _add_simulate(verbs)
    _add_cache(verbs)


def _add_targets(verbs: Any) -> None:
    parser: Parser = verbs.add_parser("targets", help="list the machines that ship with pimflow, or show one")
    actions = parser.add_subparsers(dest="action", metavar="list|show", required=True)
    listing = actions.add_parser("list", help="names and descriptions")
    add_json(listing)
    listing.set_defaults(run=_targets_list)
    show = actions.add_parser("show", help="a target file, with comments and sources")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_targets_show)


def _targets_list(arguments: argparse.Namespace) -> int:
    from pimflow.targets import load_target, target_names

    targets = [load_target(name) for name in target_names()]
    if arguments.json:
        print_json([{"name": target.name, "description": target.description} for target in targets])
        return 0
    rows = [
        (target.name, str(target.pim.channels), f"{target.pim.banks} x {target.pim.multipliers}", target.description)
        for target in targets
    ]
    print(render_table(("target", "PIM channels", "banks x MACs", "description"), rows, right=(1,)))
    return 0


def _targets_show(arguments: argparse.Namespace) -> int:
    from pimflow.targets import target_text

    print(target_text(arguments.name), end="")
    return 0


def _add_layer(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "layer",
        help="mapping, cycles, commands and energy of one layer on PIM, without a model",
        description="Answers for one layer: how it is mapped onto the PIM channels and what that costs.",
        epilog="keys of --conv: ic oc h w k (or kh, kw) s p d g n; padding is one number or top/left/bottom/right\n"
        "keys of --matmul: m k n b",
    )
    layer = parser.add_mutually_exclusive_group(required=True)
    layer.add_argument("--conv", metavar="ic=16,oc=96,h=112,w=112,k=1,...", help="a convolution")
    layer.add_argument("--matmul", metavar="m=1,k=1280,n=1000", help="a matrix product")
    parser.add_argument("--mapping", default="auto", metavar="newton+|newton++|auto", help="default: auto")
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=_layer)


def _layer(arguments: argparse.Namespace) -> int:
    from pimflow.report.layer import parse_conv, parse_matmul, report_layer

    problem = parse_conv(arguments.conv) if arguments.conv else parse_matmul(arguments.matmul)
    report = report_layer(problem, target_of(arguments), arguments.mapping)
    if arguments.json:
        print_json(report.as_json())
    else:
        print(report.text())
    return 0


def _add_simulate(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "simulate",
        help="time command traces",
        description="Cycles, commands and energy of command traces, one PIM channel each.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.pim[.gz]")
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    from pimflow.runtime.newton.trace_timing import simulate_file

    pim = target_of(arguments).pim
    results = [(file, simulate_file(file, pim)) for file in arguments.files]
    if arguments.json:
        print_json([{"file": file, **result.as_json()} for file, result in results])
        return 0
    header = ("file", "cycles", "GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF", "energy (uJ)")
    rows = []
    for file, result in results:
        document = result.as_json()
        counts = [number(document["commands"][name], 0) for name in header[2:8]]
        rows.append((file, number(result.cycles, 0), *counts, number(document["energy_j"]["total"] * 1e6, 3)))
    print(render_table(header, rows, right=range(1, 9)))
    return 0


def _add_cache(verbs: Any) -> None:
    parser: Parser = verbs.add_parser("cache", help="the profile table on disk: say where it is, or clear it")
    actions = parser.add_subparsers(dest="action", metavar="info|clear", required=True)
    info = actions.add_parser("info", help="folder, records and size")
    add_json(info)
    info.set_defaults(run=_cache_info)
    clear = actions.add_parser("clear", help="delete the profile table")
    clear.set_defaults(run=_cache_clear)


def _cache_info(arguments: argparse.Namespace) -> int:
    import dataclasses

    from pimflow.search.price_cache import cache_info

    info = cache_info()
    if arguments.json:
        print_json(dataclasses.asdict(info))
        return 0
    print(f"folder   {info.folder}\nfiles    {info.files}\nrecords  {info.records}")
    print(f"damaged  {info.damaged}\nbytes    {number(info.bytes, 0)}")
    return 0


def _cache_clear(arguments: argparse.Namespace) -> int:
    from pimflow.search.price_cache import cache_clear

    print(f"removed {cache_clear()} files of the profile table")
    return 0
