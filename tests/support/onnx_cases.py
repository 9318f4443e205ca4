"""ONNX's own operator tests (the node tests of the onnx package) through the compiler: `python -m support.onnx_cases`.

Counts how many of the tests that ONNX Runtime passes survive import, export, compilation and a run with the same
results.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

import pimflow
from pimflow.errors import PimflowError
from pimflow.frontend import load_model
from pimflow.onnxio import to_onnx
from pimflow.runtime.execute.original import run_original
from pimflow.verify.outputs import compare_outputs

NEWEST_IR, NEWEST_OPSET, OLDEST_OPSET = 13, 26, 7
MIN_SHARE = 0.99
RTOL = 1e-5
_RANDOM = frozenset(
    {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Dropout"}
)


class Case(NamedTuple):
    """A test that ONNX Runtime passes: the model in an opset that it loads, its inputs, and its outputs."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]
    results: dict[str, Any]


class Outcome(NamedTuple):
    """How far a case came: `failed` is "" or the step at which it failed, for `reason`."""

    failed: str = ""
    reason: str = ""


def cases(stride: int = 1) -> list[TestCase]:
    """Every `stride`-th of ONNX's operator tests."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return collect_testcases(None)[::stride]


def passed_by_ort(given: list[TestCase]) -> Iterator[Case]:
    """Those that ONNX Runtime passes, within the test's own tolerance, from the oldest opset that pimflow reads."""
    ort.set_default_logger_severity(4)
    for case in given:
        assert case.model is not None
        assert case.data_sets is not None
        model = _loadable(case.model)
        data, wanted = ([_read(item) for item in items] for items in case.data_sets[0])
        if len(data) != len(model.graph.input) or not _is_young(model):
            continue
        feeds = dict(zip([info.name for info in model.graph.input], data, strict=True))
        try:
            results = run_original(model, feeds)
        except PimflowError:
            continue
        pairs = zip(wanted, results.values(), strict=True)
        if _is_random(model) or all(_close(case, want, got) for want, got in pairs):
            yield Case(case.name, model, feeds, results)


def _loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the newest IR version and opset that ONNX Runtime supports, if its own is newer."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, NEWEST_IR)
    for opset in copy.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, NEWEST_OPSET)
    return copy


def _is_young(model: onnx.ModelProto) -> bool:
    return all(opset.version >= OLDEST_OPSET for opset in model.opset_import if not opset.domain)


def _is_random(model: onnx.ModelProto) -> bool:
    """Whether two runs may give different results."""
    return any(node.op_type in _RANDOM for node in model.graph.node)


def _read(item: Any) -> Any:
    readers: dict[type[Any], Callable[[Any], Any]] = {
        onnx.TensorProto: numpy_helper.to_array,
        onnx.SequenceProto: numpy_helper.to_list,
        onnx.OptionalProto: numpy_helper.to_optional,
    }
    return readers.get(type(item), lambda array: array)(item)


def _close(case: TestCase, want: Any, got: Any) -> bool:
    if isinstance(want, list):
        same = isinstance(got, list) and len(want) == len(got)
        return same and all(_close(case, *pair) for pair in zip(want, got, strict=True))
    if want is None or got is None:
        return want is got
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype.kind in "OSU":
        return want.shape == got.shape and bool(np.array_equal(want.astype(str), got.astype(str)))
    pair = got.astype(np.complex128), want.astype(np.complex128)
    return bool(np.allclose(*pair, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5), equal_nan=True))


def shapes_of(case: Case) -> dict[str, tuple[int, ...]]:
    """The shapes of a case's data: they bind the dimensions that its model leaves open."""
    tensors = {info.name for info in case.model.graph.input if info.type.WhichOneof("value") == "tensor_type"}
    return {name: item.shape for name, item in case.feeds.items() if name in tensors and isinstance(item, np.ndarray)}


def through_the_compiler(case: Case) -> Outcome:
    """Import, export, compile, run and compare one case; a bug of pimflow (anything but a `PimflowError`) is raised."""
    step, shapes = "import", shapes_of(case)
    try:
        graph = load_model(case.model, shapes)
        step = "export"
        onnx.checker.check_model(to_onnx(graph))
        step = "compile"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = pimflow.compile(case.model, shapes=shapes, policy="gpu", use_cache=False)
        compiled.summary()
        step = "run"
        results = compiled.run({name: case.feeds[name] for name in compiled.graph.inputs})
    except (PimflowError, onnx.checker.ValidationError) as error:
        return Outcome(step, " ".join(str(error).split()))
    if _is_random(case.model):
        return Outcome()
    wrong = [check for check in compare_outputs(case.results, results, RTOL) if not check.passed]
    return Outcome("values", f"{wrong[0].name}: {wrong[0].problem}") if wrong else Outcome()


def main() -> int:
    """Print the counts, and every case that failed; the exit code is 1 if fewer than 99 % survive."""
    parser = argparse.ArgumentParser(prog="python -m support.onnx_cases", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="every so many of the tests (default: all)")
    given = cases(parser.parse_args().stride)
    counts: Counter[str] = Counter()
    for case in passed_by_ort(given):
        try:
            failed, reason = through_the_compiler(case)
        except Exception as error:  # a bug is counted, and the other cases go on
            failed, reason = "traceback", f"{type(error).__name__}: {error}"
        counts[failed] += 1
        if failed:
            print(f"{case.name}: {failed}: {' '.join(reason.split())[:300]}", flush=True)
    survived, passed = counts.pop("", 0), counts.total()
    print(f"{len(given)} operator tests, {survived + passed} pass in ONNX Runtime, {survived} of these survive")
    print("\n".join(f"{count:6}  end at: {step}" for step, count in counts.most_common()))
    return 0 if survived >= MIN_SHARE * (survived + passed) else 1


if __name__ == "__main__":
    sys.exit(main())
