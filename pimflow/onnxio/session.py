"""ONNX Runtime sessions over IR graphs: large constants are lent to the session, never serialised.

ONNX Runtime 1.32 still copies what it is lent, once, while it opens the session.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx

from pimflow.errors import ModelError
from pimflow.ir import Array, Graph, Node, OnnxOp, Value
from pimflow.onnxio.export import split_model
from pimflow.onnxio.runtime import QUIET, onnx_runtime, runtime_errors
from pimflow.onnxio.tensors import NUMPY_NATIVE, dtype_code, numpy_dtype, to_array
from pimflow.onnxio.widening import NARROW, is_narrow, single_precision, widened

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue, RunOptions, SessionOptions

_CRASHING_OPTIMISER = "MatmulTransposeFusion"
"""An optimiser that is disabled in every session, because it crashes. If a Cast lies between a Transpose and a product
(ONNX Runtime inserts one there itself in fp16), it inserts a new Transpose after the Cast; if it then fuses nothing,
the graph is not resolved again, and the next pass reads the new node's schema through a null pointer, which ends the
process (1.23 to 1.32). In double precision it fuses into an operator that has no kernel
(microsoft/onnxruntime#28136)."""

_EXACT_BYTES = "session.x64quantprecision"
"""A setting for sums of products of unsigned by signed bytes, which applies to optimised models. On x86-64 CPUs without
VNNI, ONNX Runtime's default instruction clips the sum of every two products to 16 bits: results were off by 6 % of
their magnitude. Elsewhere it has no effect. It fails for weights that two nodes share, for convolutions and products of
signed activations, and for a DequantizeLinear with a scale per channel and no zero point that becomes part of no
product (1.32): those models keep the default. Version 1.23 ends the process for some."""

_EXACT_BYTES_SINCE = (1, 32)

_INEXACT_ONLY = ("AddInitializedOrtValue", "Failed to find kernel")
"""ONNX Runtime's messages if a model cannot be opened with that setting: for shared weights, signed activations."""

INLINE_LIMIT_BYTES = 16 * 1024
"""Constants up to this size are part of the serialised model, larger ones are lent by reference."""


def session_options(
    threads: int = 2,
    optimise: bool = True,
    fuse_quantised: bool = True,
    prepack: bool | None = None,
    exact_bytes: bool = True,
) -> SessionOptions:
    """Quiet options with a fixed number of threads.

    Args:
        threads: threads of one operator.
        optimise: whether ONNX Runtime may fuse and fold.
        fuse_quantised: whether it may compute operators between a DequantizeLinear and a QuantizeLinear in 8 bits, its
            default; otherwise it computes them in single precision, as written.
        prepack: whether it prepares for many runs (by default if it optimises), that is, changes the layout of weights
            and plans the reuse of memory between results (in time quadratic in the readers of a value). The memory of
            results without further readers is freed in either case.
        exact_bytes: whether sums of products of bytes are exact on every CPU, if this version can do that.
    """
    ort = onnx_runtime()
    options: SessionOptions = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena takes up to twice the memory requested, and never returns any
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads sleep
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    options.add_session_config_entry(_EXACT_BYTES, "1" if exact_bytes and version >= _EXACT_BYTES_SINCE else "0")
    if not fuse_quantised:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("optimization.disable_specified_optimizers", _CRASHING_OPTIMISER)
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not (optimise if prepack is None else prepack):
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_mem_reuse = False
    return options


def open_session(model: str | bytes, options: SessionOptions, name: str) -> InferenceSession:
    """A session over a model file or a serialised model.

    Raises:
        ModelError: ONNX Runtime refuses the model, which the message calls `name`.
    """
    try:
        return _opened(model, options)
    except runtime_errors() as error:
        if not any(words in str(error) for words in _INEXACT_ONLY):
            refuse(name, error)
    options.add_session_config_entry(_EXACT_BYTES, "0")
    try:
        return _opened(model, options)
    except runtime_errors() as error:
        refuse(name, error)


def _opened(model: str | bytes, options: SessionOptions) -> InferenceSession:
    return onnx_runtime().InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def lend(constants: Mapping[str, Array], options: SessionOptions) -> dict[str, OrtValue]:
    """Lets a session read constants that its model only refers to in place, for as long as the result is kept alive."""
    lent = {name: to_ort_value(array) for name, array in constants.items()}
    if lent:
        options.add_external_initializers(list(lent), list(lent.values()))
    return lent


@contextmanager
def time_limited(limit_s: float | None) -> Iterator[RunOptions | None]:
    """Run options that end a run after `limit_s` seconds, at the next node; None if there is no limit."""
    if limit_s is None:
        yield None
        return
    options = onnx_runtime().RunOptions()
    options.log_severity_level = QUIET
    timer = threading.Timer(limit_s, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def needs_zero_points(error: ModelError) -> bool:
    """Whether a run fails because sums of products of bytes are to be exact, for want of a zero point."""
    return "x_zero_point must be null" in error.what


def lacks_kernel(error: ModelError) -> bool:
    """Whether ONNX Runtime refuses a model because an operator has no kernel for the given type."""
    return "Could not find an implementation" in error.what


def ran_out_of_resources(error: ModelError) -> bool:
    """Whether a run ended for lack of time or memory, rather than because of a fault in the model."""
    return any(words in error.what for words in _OUT_OF_RESOURCES)


_OUT_OF_RESOURCES = ("terminate flag", "Failed to allocate memory", "bad_alloc", "bad allocation")


def _single(item: Any) -> Any:
    return single_precision(item) if isinstance(item, np.ndarray) else item


class GraphSession:
    """A session over a graph; keeps the lent constants alive.

    On a CPU, ONNX Runtime has bf16 kernels for few operators, and fp16 kernels for most but not all (random numbers,
    EyeLike). A graph that needs a missing one is run in single precision, which represents all these numbers exactly;
    `widened` is then True. Inputs and outputs keep their types; intermediate results are not rounded.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """

    def __init__(self, graph: Graph, threads: int = 2, optimise: bool = True, fuse_quantised: bool = True) -> None:
        self.name = graph.name
        self.outputs = graph.outputs
        self._dtypes = {name: graph.value(name).dtype for name in graph.outputs}
        self.widened = False
        self._with_clipped_bytes: Callable[[], InferenceSession] | None = None
        try:
            self.session = self._open(graph, threads, optimise, fuse_quantised)
        except ModelError as error:
            if not lacks_kernel(error) or not is_narrow(graph):
                raise
            self.widened = True
            self.session = self._open(widened(graph), threads, optimise, fuse_quantised)
        self._read = self._types_to_read()

    def _open(
        self, graph: Graph, threads: int, optimise: bool, fuse_quantised: bool, exact_bytes: bool = True
    ) -> InferenceSession:
        needed = _without_unread_constants(_with_cast_outputs(graph))
        model, lent = split_model(needed, INLINE_LIMIT_BYTES, with_ranks=False)
        options = session_options(threads, optimise, fuse_quantised, exact_bytes=exact_bytes)
        self._lent = lend(lent, options)
        dequantises = any(node.op_type == "DequantizeLinear" for node in model.graph.node)
        again = partial(self._open, graph, threads, optimise, fuse_quantised, exact_bytes=False)
        self._with_clipped_bytes = again if dequantises and exact_bytes else None
        text = model.SerializeToString()
        del model  # the session has another copy
        return open_session(text, options, graph.name)

    def run(
        self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None, *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Values of all outputs, or of the named ones: arrays, or lists for sequences.

        Args:
            feeds: values by input name.
            fetch: names of outputs.
            limit_s: seconds after which the run is ended, at the next node (also in a Loop's body).

        Raises:
            ModelError: ONNX Runtime fails, or is ended.
        """
        try:
            return self._run(feeds, self.outputs if fetch is None else tuple(fetch), limit_s)
        except ModelError as error:
            if self._with_clipped_bytes is None or not needs_zero_points(error):
                raise
        self.session = self._with_clipped_bytes()
        return self._run(feeds, self.outputs if fetch is None else tuple(fetch), limit_s)

    def _run(self, feeds: Mapping[str, Any], names: Sequence[str], limit_s: float | None) -> dict[str, Any]:
        fetched = [self._fetched_name(name) for name in names]
        if self.widened:
            feeds = {name: _single(item) for name, item in feeds.items()}
        with time_limited(limit_s) as options:
            try:
                if not self._read.keys().isdisjoint(names) or any(map(needs_ort_value, feeds.values())):
                    lent = {name: to_ort_value(np.asarray(array)) for name, array in feeds.items()}
                    given = self.session.run_with_ort_values(fetched, lent, options)
                    results = [self._array(name, value) for name, value in zip(names, given, strict=True)]
                else:
                    results = self.session.run(fetched, dict(feeds), options)
            except runtime_errors() as error:
                refuse(self.name, error)
        found = {name: self._restore(name, result) for name, result in zip(names, results, strict=True)}
        return unaliased(found, feeds)

    def _types_to_read(self) -> dict[str, str]:
        """The types of the outputs that are read from ONNX Runtime's memory, as it returns no arrays of them: those of
        four bits, and those whose type was unknown when the session was opened."""
        found = {item.name: ort_dtype(item.type) for item in self.session.get_outputs()}
        unknown = [name for name, dtype in self._dtypes.items() if not dtype and _carrier_dtype(found.get(name, ""))]
        four_bits = {name: dtype for name, dtype in self._dtypes.items() if is_of_four_bits(dtype)}
        return four_bits | {name: found[name] for name in unknown}

    def _array(self, name: str, value: OrtValue) -> Any:
        return from_ort_value(value, self._read[name]) if name in self._read else value.numpy()

    def _fetched_name(self, name: str) -> str:
        dtype = self._dtypes[name]
        if self.widened and dtype in NARROW:
            return name
        return _cast_name(name) if _carrier_dtype(dtype) else name

    def _restore(self, name: str, result: Any) -> Any:
        dtype = self._dtypes[name]
        narrowed = self.widened and dtype in NARROW
        return result.astype(numpy_dtype(dtype)) if narrowed or _carrier_dtype(dtype) else result


def _carrier_dtype(dtype: str) -> str:
    """The type in which ONNX Runtime returns values for which it has no numpy type; "" if it has one.

    Four-bit values are read directly: before opset 21, Cast does not accept those that ONNX Runtime's own operators
    make.
    """
    if (
        is_of_four_bits(dtype)
        or dtype in NUMPY_NATIVE
        or not dtype_code(dtype)
        or dtype == "object"
        or dtype.startswith("complex")
    ):
        return ""
    return "int8" if dtype.startswith("int") else "uint8" if dtype.startswith("uint") else "float32"


def _cast_name(name: str) -> str:
    return f"{name}@carried"


def _with_cast_outputs(graph: Graph) -> Graph:
    """The graph with a Cast after each output whose type ONNX Runtime cannot return."""
    carriers = {name: _carrier_dtype(graph.value(name).dtype) for name in graph.outputs}
    if not any(carriers.values()):
        return graph
    outputs = [_cast_name(name) if carrier else name for name, carrier in carriers.items()]
    casts = [
        Node(OnnxOp("Cast", "", (("to", dtype_code(carrier)),)), (name,), (_cast_name(name),), f"{name}@cast")
        for name, carrier in carriers.items()
        if carrier
    ]
    values = {
        _cast_name(name): Value(_cast_name(name), graph.value(name).shape, carrier)
        for name, carrier in carriers.items()
        if carrier
    }
    return graph.replace(outputs=outputs, nodes=[*graph.nodes, *casts], values={**graph.values, **values})


def _without_unread_constants(graph: Graph) -> Graph:
    """The graph without constants that nothing reads: ONNX Runtime drops them, and then does not find what replaces
    them if they are lent."""
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    constants = {name: array for name, array in graph.constants.items() if name in read}
    if len(constants) == len(graph.constants):
        return graph
    unread = graph.constants.keys() - constants.keys()
    values = {name: value for name, value in graph.values.items() if name not in unread}
    return graph.replace(values=values, constants=constants)


def needs_ort_value(item: Any) -> bool:
    """Whether ONNX Runtime accepts an array of this type only as an OrtValue."""
    return isinstance(item, np.ndarray) and item.dtype.name not in NUMPY_NATIVE and item.dtype.kind not in "OUS"


_ORT_DTYPES = {
    "float": "float32",
    "double": "float64",
    "string": "object",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}


def ort_dtype(text: str) -> str:
    """Our name for an element type, from ONNX Runtime's notation "tensor(float)"."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return _ORT_DTYPES.get(name, name)


def to_ort_value(array: Array) -> OrtValue:
    """An array as an OrtValue, which shares its memory if that is contiguous."""
    if array.dtype.kind in "SU":
        array = array.astype(object)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name in NUMPY_NATIVE or array.dtype == object:
        value: OrtValue = onnx_runtime().OrtValue.ortvalue_from_numpy(contiguous)
        return value
    bits = _pack(contiguous) if is_of_four_bits(array.dtype.name) else contiguous.view(f"u{array.dtype.itemsize}")
    wrapped: OrtValue = onnx_runtime().OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype_code(array.dtype.name))
    return wrapped


def is_of_four_bits(dtype: str) -> bool:
    """Whether two elements share a byte in files and in ONNX Runtime; numpy has a byte for each."""
    return dtype in ("int4", "uint4")


def _pack(array: Array) -> Array:
    """Four-bit elements in ONNX Runtime's layout: two per byte, the lower bits first, followed by unused bytes.

    ONNX Runtime's tensor has the array's shape, and uses the first half of its bytes.
    """
    whole = array.astype(np.int8).reshape(-1).view(np.uint8) & 0xF
    pairs = np.resize(whole, whole.size + whole.size % 2).reshape(-1, 2)
    bits = np.zeros(array.size, np.uint8)
    bits[: len(pairs)] = pairs[:, 0] | pairs[:, 1] << 4
    return bits.reshape(array.shape)


def unaliased(results: dict[str, Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Results with copies of those that are also inputs: some versions of ONNX Runtime return the caller's memory."""
    again = {name: np.array(item) for name, item in results.items() if name in feeds and isinstance(item, np.ndarray)}
    return {**results, **again}


def from_ort_value(value: OrtValue, dtype: str) -> Array:
    """A copy of ONNX Runtime's tensor, of any type."""
    if dtype in NUMPY_NATIVE or dtype == "object":
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return to_array(onnx.TensorProto(data_type=dtype_code(dtype), dims=value.shape(), raw_data=data))


_NOISE = re.compile(
    r"/\S*onnxruntime\S*:\d+ (?:.*? was false\. ?|[^()]*\([^()]*\)(?: const|::<lambda\(\)>)? )"
    r"|Load model from .*? failed: ?"
)
"""Prefixes of messages: a place in ONNX Runtime's source with a condition or a function's signature, or a note that a
file failed to load."""

_MESSAGES = (
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        r"it has ONNX IR version \1; \2 is the newest that this version supports",
        r"save it with ir_version = \2, or install a newer onnxruntime",
    ),
    (
        r"ONNX Runtime only \*guarantees\* .*? Opset (\d+) is under .* for domain (\S+) is till opset (\d+)\.?",
        r"it has opset \1 of \2; \3 is the newest that this version supports",
        r"convert it to opset \3, or install a newer onnxruntime",
    ),
    (
        r"No Op registered for \S+ with domain_version of \d+|\S+ is not a registered function/op",
        r"\g<0>",
        "export the model with standard ONNX operators, or with the operator as a function in the file",
    ),
    (
        r"Type 'tensor\(bfloat16\)' of input parameter \(.*?\) of operator \(.*?\) in node \(.*?\) is invalid",
        r"\g<0>",
        "export the model in opset 22 or newer, in which more operators take bfloat16",
    ),
    (
        r"Type parameter \(\w+\) of Optype \((\w+)\) bound to different types",
        r"\g<0>",
        r"give \1 operands of one element type, or export in float32: some exporters fold 32-bit scales into weights",
    ),
    (
        r"is not acyclic|Duplicate definition of name|is not a graph input, init|Graph output \(.*\) does not exist",
        r"\g<0>",
        "correct the model, or export it again",
    ),
)
"""ONNX Runtime's messages about models: a pattern, its replacement, and advice. For an unknown opset, the original goes
on about how ONNX is released."""


def refuse(name: str, error: Exception) -> NoReturn:
    """Raises ONNX Runtime's complaint as a `ModelError` of one line."""
    text = " ".join(str(error).split())
    text = text.split(" : ", 3)[-1] if text.startswith("[ONNXRuntimeError]") else text
    text, hint = _NOISE.sub("", text).rstrip(".") or text, ""
    for pattern, replacement, advice in _MESSAGES:
        if found := re.search(pattern, text):
            text, hint = text.replace(found[0], found.expand(replacement)), found.expand(advice)
            break
    raise ModelError(f"ONNX Runtime refuses model {name!r}: {text[:600]}", hint) from error
