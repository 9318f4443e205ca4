"""A graph in a file: as ONNX, or in the compiler's text form with its constants in a second file.

The text form elides large constants: it shows their type and a hash. `NAME.pimir` has them in `NAME.pimir.npz`, by
name; for a text from elsewhere, the user names such a file. Constants of types that numpy lacks, and constants of text,
are never elided.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pimflow.bundle.files import parent_folders
from pimflow.bundle.source import model_source
from pimflow.data import read_file
from pimflow.errors import GraphError, ModelError, OptionError, OutputError, TextError
from pimflow.frontend import load_model
from pimflow.frontend.binding import ShapeBindings
from pimflow.frontend.fixing import FixedValues
from pimflow.ir import Array, Graph, parse_graph, print_graph
from pimflow.ir.text import INLINE_ELEMENTS
from pimflow.ir.verify import verify_graph
from pimflow.onnxio import save_onnx
from pimflow.onnxio.npz import read_npz, write_npz
from pimflow.onnxio.tensors import NUMPY_NATIVE, attribute_proto

if TYPE_CHECKING:
    import onnx

TEXT_SUFFIX = ".pimir"
_MAX_TEXT_BYTES = 2 << 30
"""Size limit of a text that may spell out all constants of a graph."""


def read_graph(
    model: str | Path | bytes | onnx.ModelProto,
    shapes: ShapeBindings | None = None,
    constants: str | Path | None = None,
    fixed: FixedValues | None = None,
) -> Graph:
    """Read the graph in a file.

    Args:
        model: an ONNX model in any form that `model_source` takes, including placements if pimflow wrote them; or the
            path of a text (`*.pimir`).
        shapes: sizes for dimensions that a model leaves open.
        constants: an npz file of the constants that a text elides; by default the one next to it, if there is one.
        fixed: values of an ONNX model's inputs to replace by constants.

    Raises:
        PimflowError: it cannot be read, or is malformed.
    """
    if isinstance(model, (str, Path)) and str(model).endswith(TEXT_SUFFIX):
        if fixed:
            raise OptionError("inputs of a graph in text form cannot be fixed", "leave --fix out")
        return _read_text(Path(model), shapes, constants)
    if constants is not None:
        raise OptionError("an ONNX model has its own constants", "leave --constants out")
    return load_model(model_source(model).content, shapes, fixed=fixed, annotations=True)


def _read_text(path: Path, shapes: ShapeBindings | None, constants: str | Path | None) -> Graph:
    if shapes:
        raise OptionError("the shapes of a graph in text form are in the text", "leave --shape out")
    try:
        text = read_file(path, _MAX_TEXT_BYTES).decode("utf-8")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not text: {error}", f"give a graph in text form, or rename {path.name}") from None
    beside = path.with_name(f"{path.name}.npz")
    return graph_of_text(text, constants or (beside if beside.exists() else None), str(path))


def graph_of_text(text: str, constants: str | Path | None = None, name: str = "the text") -> Graph:
    """Parse a graph in text form, and verify it.

    Args:
        text: the text form.
        constants: an npz file of the constants that the text elides.
        name: how errors refer to the text.

    Raises:
        TextError: the text is malformed, lacks a constant, or is not a valid graph.
        InputDataError: the constants cannot be read.
    """
    arrays: Mapping[str, Array] = {} if constants is None else read_npz(constants)
    try:
        graph = parse_graph(text, arrays)
        _check_attributes(graph)
        verify_graph(graph)
    except TextError as error:
        raise TextError(f"{name}: {error.what}", error.hint) from None
    except GraphError as error:
        raise TextError(f"{name} is not a valid graph: {error}") from None
    return graph


def _check_attributes(graph: Graph) -> None:
    """Refuse attributes whose bytes are not those of an ONNX attribute, which ONNX could not read back."""
    for node in graph.nodes:
        for name, value in getattr(node.op, "attributes", ()):
            try:
                attribute_proto(name, value)
            except (DecodeError, TypeError, ValueError) as error:
                raise GraphError(f"node {node.name!r}: its attribute {name!r} cannot be written: {error}") from None


def graph_text(graph: Graph, inline: bool = False) -> str:
    """The text form, with large constants elided unless `inline`."""
    return print_graph(graph, _inline_elements(graph, inline))


def _inline_elements(graph: Graph, inline: bool) -> int:
    """The largest number of elements up to which a constant is spelled out: large enough for every constant that an npz
    file cannot hold."""
    arrays = graph.constants.values()
    sizes = [array.size for array in arrays if inline or array.dtype.name not in NUMPY_NATIVE]
    return max([INLINE_ELEMENTS, *sizes])


def check_graph_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that `write_graph` would not write; called before long work.

    Raises:
        OutputError: the file's kind is unknown, or it exists.
    """
    if path.suffix not in (".onnx", TEXT_SUFFIX):
        raise OutputError(f"{path} is neither ONNX nor text", f"end its name with .onnx or {TEXT_SUFFIX}")
    for name in (path, *_companions(path)):
        if name.exists() and not overwrite:
            raise OutputError(f"{name} exists", "choose another name, or ask for --overwrite")


def _companions(path: Path) -> tuple[Path, ...]:
    return (path.with_name(path.name + (".npz" if path.suffix == TEXT_SUFFIX else ".data")),)


def write_graph(graph: Graph, path: Path, *, inline: bool = False, overwrite: bool = False) -> None:
    """Write a graph atomically, in the format that the file's name implies: `*.onnx`, or text (`*.pimir`).

    Args:
        graph: any graph.
        path: the file. A second file with the constants may be written next to it.
        inline: spell out all constants of a text, which then needs no other file.
        overwrite: whether existing files are replaced.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    check_graph_file(path, overwrite)
    try:
        with (
            parent_folders(path),
            tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent) as scratch,
        ):
            made = Path(scratch, path.name)
            if path.suffix == TEXT_SUFFIX:
                _write_text(graph, made, inline)
            else:
                save_onnx(graph, made)
            for file in sorted(Path(scratch).iterdir(), reverse=True):  # the graph comes last, after the files it needs
                file.replace(path.with_name(file.name))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "check space and permissions") from None


def _write_text(graph: Graph, path: Path, inline: bool) -> None:
    path.write_text(graph_text(graph, inline), encoding="utf-8")
    most = _inline_elements(graph, inline)
    elided = {name: array for name, array in graph.constants.items() if array.size > most}
    if elided:
        write_npz(path.with_name(f"{path.name}.npz"), elided)
