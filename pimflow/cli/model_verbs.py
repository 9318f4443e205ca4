"""Verbs about models: zoo, inspect, profile, calibrate."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from pimflow.cli.output import Progress, print_json
from pimflow.cli.parsing import Parser, add_json, add_model, add_target, positive_int, seed_int, target_of
from pimflow.errors import OptionError
from pimflow.report.tables import number, render_table


def add_verbs(verbs: Any) -> None:
    """Adds this file's verbs."""
    _add_zoo(verbs)
    _add_inspect(verbs)
    _add_profile(verbs)
    _add_calibrate(verbs)


def _add_zoo(verbs: Any) -> None:
    parser: Parser = verbs.add_parser("zoo", help="list the models that ship with pimflow, or write one as ONNX")
    actions = parser.add_subparsers(dest="action", metavar="list|export", required=True)
    listing = actions.add_parser("list", help="names and sizes")
    add_json(listing)
    listing.set_defaults(run=_zoo_list)
    export = actions.add_parser("export", help="write a model as an ONNX file")
    export.add_argument("name", metavar="NAME")
    export.add_argument("-o", "--output", metavar="FILE", help="default: NAME.onnx in this folder")
    export.set_defaults(run=_zoo_export)


def _zoo_list(arguments: argparse.Namespace) -> int:
    import pimflow_zoo

    if arguments.json:
        print_json([{"name": name, "description": pimflow_zoo.describe(name)} for name in pimflow_zoo.names()])
        return 0
    print(render_table(("model", "description"), [(name, pimflow_zoo.describe(name)) for name in pimflow_zoo.names()]))
    return 0


def _zoo_export(arguments: argparse.Namespace) -> int:
    from pimflow.bundle.folder import write_whole
    from pimflow.bundle.source import model_source

    source = model_source(f"zoo:{arguments.name}")
    path = Path(arguments.output or f"{source.name}.onnx")
    content = source.content
    assert not isinstance(content, (str, bytes))
    write_whole(path, content.SerializeToString(deterministic=True))
    print(path)
    return 0


def _add_inspect(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "inspect",
        help="which nodes can go to PIM, and why the others cannot",
        description="Which nodes of a model can go to PIM, and why the others cannot.",
    )
    add_model(parser)
    add_target(parser)
    parser.add_argument("--text", action="store_true", help="print the model in the compiler's text form instead")
    add_json(parser)
    parser.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from pimflow.compiler import inspect_model
    from pimflow.frontend import parse_shapes

    report = inspect_model(arguments.model, target=target_of(arguments), shapes=parse_shapes(arguments.shape))
    if arguments.text:
        print(report.text_form(), end="")
        return 0
    if arguments.json:
        print_json(report.as_json())
        return 0
    rows = [
        (item.name, item.op, item.shape, number(item.macs / 1e6, 2) if item.macs else "-", item.verdict)
        for item in report.nodes
    ]
    print(render_table(("node", "op", "output", "MMACs", "PIM"), rows, right=(3,)))
    able = [item for item in report.nodes if item.leaves_host]
    share = 100 * sum(item.macs for item in able) / max(1, sum(item.macs for item in report.nodes))
    print(f"\n{len(able)} of {len(report.nodes)} nodes can go to PIM, with {share:.1f} % of the multiply-accumulates")
    for reason, count in Counter(item.reason for item in report.nodes if not item.leaves_host).most_common():
        print(f"  {count:4d}  {reason}")
    return 0


def _add_profile(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "profile",
        help="time a model's kernels on this machine",
        description="Times a model's kernels on this machine and writes (op, shapes, time) rows as CSV.",
    )
    add_model(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu (ONNX Runtime)")
    parser.add_argument("--runs", type=positive_int, default=20, metavar="N", help="timed runs per kernel")
    parser.add_argument("--warmup", type=seed_int, default=5, metavar="N", help="runs before those")
    parser.add_argument("-o", "--output", metavar="FILE.csv", help="default: standard output")
    parser.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    from pimflow.bundle.folder import write_whole
    from pimflow.compiler import profile_source
    from pimflow.frontend import parse_shapes
    from pimflow.runtime.gpu.measured import table_text

    progress = Progress()
    try:
        rows = profile_source(
            arguments.model,
            device=arguments.device,
            shapes=parse_shapes(arguments.shape),
            runs=arguments.runs,
            warmup=arguments.warmup,
            progress=progress,
        )
    finally:
        progress.close()
    text = table_text(rows)
    if not arguments.output:
        print(text, end="")
        return 0
    write_whole(Path(arguments.output), text.encode())
    print(arguments.output)
    return 0


def _add_calibrate(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "calibrate",
        help="fit a target's GPU parameters to measured times",
        description="Fits a target's GPU parameters to measured (op, shape, time) rows, cross-validated.",
    )
    parser.add_argument("--from", dest="table", required=True, metavar="TABLE.csv", help="rows of `pimflow profile`")
    parser.add_argument("-o", "--output", metavar="FILE.toml", help="write the fitted target here")
    parser.add_argument("--folds", type=positive_int, default=5, metavar="K", help="folds of the cross-validation")
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    from pimflow.bundle.folder import write_whole
    from pimflow.runtime.gpu.calibrate import calibrate
    from pimflow.targets import to_toml

    if arguments.folds < 2:
        raise OptionError("--folds 1 leaves nothing to validate on", "give 2 or more")
    result = calibrate(target_of(arguments), arguments.table, folds=arguments.folds)
    if arguments.output:
        write_whole(Path(arguments.output), to_toml(result.target).encode())
    if arguments.json:
        print_json(result.as_json())
    else:
        print(result.text())
    return 0
