"""`pimflow layer`: one layer on PIM, without a model."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import show
from pimflow.cli.parsing import Parser, add_json, add_target, target_of


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "layer",
        help="map a single layer onto PIM: cycles, commands and energy",
        description="Shows how a single layer is mapped onto the PIM channels, and what it costs.",
        epilog="keys of --conv: ic oc h w k (or kh, kw) s p d g n; padding is one number or top/left/bottom/right\n"
        "keys of --matmul: m k n b",
    )
    layer = parser.add_mutually_exclusive_group(required=True)
    layer.add_argument("--conv", metavar="ic=16,oc=96,h=112,w=112,k=1,...", help="a convolution")
    layer.add_argument("--matmul", metavar="m=1,k=1280,n=1000", help="a matrix product")
    parser.add_argument(
        "--mapping", default="auto", metavar="newton+|newton++|auto", help="mapping policy (default: auto)"
    )
    parser.add_argument(
        "--operand",
        default="",
        metavar="TYPE",
        help="operand type: int8, where the target supports it (default: the target's own type)",
    )
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Map, price and print the layer."""
    import pimflow
    from pimflow.cli.layers import parse_conv, parse_matmul

    problem = parse_matmul(arguments.matmul) if arguments.conv is None else parse_conv(arguments.conv)
    report = pimflow.layer(problem, mapping=arguments.mapping, operand=arguments.operand, target=target_of(arguments))
    show("layer", report, arguments)
    return 0
