"""Verbs that compile models and look at the result: compile, verify, trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pimflow.cli.output import Progress, print_json
from pimflow.cli.parsing import (
    Parser,
    add_json,
    add_model,
    add_target,
    positive_float,
    positive_int,
    seed_int,
    target_of,
)
from pimflow.errors import OptionError


def add_verbs(verbs: Any) -> None:
    """Adds this file's verbs."""
    _add_compile(verbs)
    _add_verify(verbs)
    _add_trace(verbs)


def _add_compile(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "compile",
        help="compile a model for a machine with PIM memory",
        description="Decides for every part of a model whether it runs on the GPU, on PIM or on both, rewrites the "
        "graph,\nmakes the PIM command streams, and writes all of it to a folder.",
    )
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="output folder (default: NAME.pimflow in this folder)")
    parser.add_argument(
        "--policy",
        metavar="P",
        help="search policy: gpu, newton+, newton++, pim, md-dp, pipeline, pimflow or auto (default)",
    )
    add_target(parser)
    add_search(parser)
    parser.add_argument("--seed", type=seed_int, default=0, metavar="N", help="seed of made-up inputs (default: 0)")
    add_debug(parser)
    add_json(parser)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more; may be repeated")
    parser.set_defaults(run=_compile)


def add_search(parser: Parser) -> None:
    """Options of the search."""
    group = parser.add_argument_group("search")
    group.add_argument("--grid", type=positive_int, metavar="PERCENT", help="step of the MD-DP split ratios")
    group.add_argument("--stages", metavar="N[,N...]", help="pipeline stage counts to try")
    group.add_argument("--time-budget", type=positive_float, metavar="S", help="best plan found in so many seconds")
    group.add_argument("--profile", metavar="TABLE.csv", help="measured kernel times that stand in for the GPU model")
    group.add_argument("--no-cache", action="store_true", help="neither read nor write the profile table on disk")


def stages_of(text: str | None) -> tuple[int, ...] | None:
    """Stage counts from "2,3".

    Raises:
        OptionError: not whole numbers of 2 or more.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 2 <= int(part) <= 64 for part in parts):
        raise OptionError(
            f"--stages {text!r} is no list of stage counts", "write whole numbers from 2 to 64, as in 2,3"
        )
    return tuple(sorted({int(part) for part in parts}))


def add_debug(parser: Parser) -> None:
    """What to show and check between passes."""
    group = parser.add_argument_group("debugging")
    group.add_argument("--print-ir-before", action="append", default=[], metavar="PASS", help="print the graph first")
    group.add_argument("--print-ir-after", action="append", default=[], metavar="PASS", help="print the graph then")
    group.add_argument("--print-ir-after-all", action="store_true", help="print the graph after every pass")
    group.add_argument("--print-pass-times", action="store_true", help="print how long every pass took")
    group.add_argument("--disable-pass", action="append", default=[], metavar="PASS", help="leave a pass out")
    group.add_argument("--verify-each", action="store_true", help="run ONNX Runtime after every pass and compare")


def debug_of(arguments: argparse.Namespace) -> Any:
    """What the shared arguments ask to show and check."""
    from pimflow.options import Debug

    return Debug(
        print_before=tuple(arguments.print_ir_before),
        print_after=tuple(arguments.print_ir_after),
        print_after_all=arguments.print_ir_after_all,
        print_times=arguments.print_pass_times,
        verify_each=arguments.verify_each,
    )


def _compile(arguments: argparse.Namespace) -> int:
    from pimflow.bundle.folder import check_output
    from pimflow.bundle.source import model_source
    from pimflow.compiler import compile_with
    from pimflow.frontend import parse_shapes
    from pimflow.options import DEFAULT_POLICY, Options

    source = model_source(arguments.model)
    folder = Path(arguments.output or f"{source.name}.pimflow")
    check_output(folder)
    options = Options(
        target=target_of(arguments),
        policy=arguments.policy or DEFAULT_POLICY,
        shapes=parse_shapes(arguments.shape),
        grid=arguments.grid,
        stages=stages_of(arguments.stages),
        time_budget_s=arguments.time_budget,
        disabled_passes=tuple(arguments.disable_pass),
        seed=arguments.seed,
        use_cache=not arguments.no_cache,
        profile=arguments.profile,
        debug=debug_of(arguments),
    )
    progress = Progress()
    try:
        compiled = compile_with(source, options, progress)
        progress(f"writing {folder}")
        compiled.save(folder)
    finally:
        progress.close()
    if arguments.json:
        print_json(compiled.document(str(folder)))
        return 0
    print(compiled.summary(verbose=arguments.verbose > 0))
    print(f"\nwritten to {folder}  (check it with: pimflow verify {folder})")
    return 0


def _add_verify(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "verify",
        help="show that a compiled model computes what the original computes",
        description="Runs the original and the compiled model on the same inputs and compares the outputs.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder of `pimflow compile`")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--seed", type=seed_int, metavar="N", help="seed of the random inputs (default: compile's)")
    inputs.add_argument("--inputs", metavar="FILE.npz", help="inputs by name")
    parser.add_argument("--rtol", type=positive_float, metavar="R", help="largest error over largest magnitude")
    parser.add_argument(
        "--pim",
        choices=("ort", "values"),
        default="ort",
        help="what stands for PIM: ONNX Runtime (default), or the command streams executed by value",
    )
    parser.add_argument("--operand", choices=("fp16", "bf16", "fp32"), help="operands of --pim values")
    parser.add_argument("--arena", action="store_true", help="run inside the planned memory arena")
    add_json(parser)
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from pimflow.compiled import load

    if arguments.operand and arguments.pim != "values":
        raise OptionError("--operand needs --pim values", "add --pim values")
    compiled = load(arguments.folder)
    progress = Progress()
    try:
        result = compiled.verify(
            inputs=arguments.inputs,
            seed=arguments.seed,
            rtol=arguments.rtol,
            pim=arguments.pim,
            operand=arguments.operand,
            arena=arguments.arena,
            progress=progress,
        )
    finally:
        progress.close()
    if arguments.json:
        print_json(result.as_json())
        return 0 if result.passed else 1
    for check in result.outputs:
        state = "ok  " if check.passed else "FAIL"
        print(
            f"{state}  {check.name}: largest error {check.max_abs_err:.3g} "
            f"({check.max_rel_err:.3g} of the largest magnitude), standard deviation {check.std:.3g}"
            + (f": {check.problem}" if check.problem else "")
        )
    for note in result.notes:
        print(f"note  {note}")
    verdict = "passed" if result.passed else "FAILED"
    print(f"{verdict}: {len(result.outputs)} outputs of {result.nodes_checked} nodes at rtol {result.rtol:g}")
    return 0 if result.passed else 1


def _add_trace(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "trace",
        help="expand the command stream of a node to text",
        description="Writes one PIM channel's commands as text, one a line, as `pimflow simulate` reads them.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder of `pimflow compile`")
    parser.add_argument("node", metavar="NODE", help="a node that runs on PIM")
    parser.add_argument("--channel", type=seed_int, default=0, metavar="C", help="PIM channel (default: 0)")
    parser.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    from pimflow.compiled import load

    for line in load(arguments.folder).trace(arguments.node, arguments.channel):
        sys.stdout.write(line)
    return 0
