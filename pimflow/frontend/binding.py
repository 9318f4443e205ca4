"""Static shapes for a model's inputs: from the model, and from the sizes given by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from pimflow.errors import ShapeError, counted
from pimflow.ir import Value
from pimflow.onnxio.tensors import type_text
from pimflow.records import dataclass

_NAMELESS = frozenset({"?", "-1", "*"})
"""Names that Paddle and others use for every unknown dim. They are not symbols: each occurrence may differ in size."""

ShapeBindings = Mapping[str, tuple[int, ...] | int]


def _show(bound: tuple[int, ...] | int) -> str:
    return str(bound) if isinstance(bound, int) else "x".join(map(str, bound))


@dataclass(frozen=True)
class Declared:
    """An input as the model declares it: a dim is a size, a symbol, or "" (unknown and nameless); None: no rank."""

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None


def bind_inputs(inputs: Sequence[onnx.ValueInfoProto], shapes: ShapeBindings) -> tuple[Value, ...]:
    """The model's inputs with static shapes. Inputs that are not tensors have none.

    A symbol bound by one input's shape is bound wherever it occurs.

    Raises:
        ShapeError: a name is unknown, a shape does not fit, or dims are left unbound (all are listed).
    """
    declared = [declared_input(info) for info in inputs]
    tensors = {tensor.name: tensor for tensor in declared if "(" not in tensor.dtype}
    symbols = {dim for tensor in tensors.values() for dim in tensor.dims or () if isinstance(dim, str) and dim}
    sizes: dict[str, int] = {}
    for name, bound in shapes.items():
        _bind(name, bound, tensors, symbols, sizes)
    values = [_resolve(tensor, shapes, sizes) for tensor in declared]
    pairs = zip(declared, values, strict=True)
    unbound = [tensor for tensor, value in pairs if tensor.name in tensors and value.shape is None]
    if unbound:
        _refuse_unbound(unbound, sizes)
    return tuple(values)


def declared_input(info: onnx.ValueInfoProto) -> Declared:
    """An input as the model declares it."""
    dtype = type_text(info.type)
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        return Declared(info.name, dtype, None)
    dims = info.type.tensor_type.shape.dim
    return Declared(info.name, dtype, tuple(map(_declared_dim, dims)))


def _declared_dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    name = str(dim.dim_param)
    return "" if name in _NAMELESS else name


def _bind(
    name: str, bound: tuple[int, ...] | int, tensors: Mapping[str, Declared], symbols: set[str], sizes: dict[str, int]
) -> None:
    """Checks one binding and records the symbols that it fixes."""
    if isinstance(bound, int):
        if name not in symbols:
            raise ShapeError(f"the model has no symbolic dim {name!r}", _known(tensors, symbols))
        _fix(name, bound, sizes)
        return
    tensor = tensors.get(name)
    if tensor is None:
        raise ShapeError(f"the model has no tensor input {name!r}", _known(tensors, symbols))
    if any(size < 0 for size in bound):
        raise ShapeError(f"the shape {_show(bound)} of input {name!r} has a size below 0")
    if tensor.dims is None:
        return
    if len(bound) != len(tensor.dims):
        dims = counted(len(bound), "dim")
        raise ShapeError(
            f"the shape {_show(bound)} of input {name!r} has {dims}, the model's has {len(tensor.dims)}",
            f"the model declares {_spell(tensor, {})}",
        )
    for axis, (size, dim) in enumerate(zip(bound, tensor.dims, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise ShapeError(
                f"the shape {_show(bound)} of input {name!r} does not fit: dim {axis} is fixed to {dim}, not {size}",
                f"the model declares {_spell(tensor, {})}",
            )
        if isinstance(dim, str) and dim:
            _fix(dim, size, sizes)


def _fix(symbol: str, size: int, sizes: dict[str, int]) -> None:
    if size < 0:
        raise ShapeError(f"the dim {symbol!r} cannot be {size}", "sizes are integers from 0")
    if sizes.setdefault(symbol, size) != size:
        raise ShapeError(f"the dim {symbol!r} is bound twice, to {sizes[symbol]} and {size}")


def _known(tensors: Mapping[str, Declared], symbols: set[str]) -> str:
    inputs = ", ".join(_spell(tensor, {}) for tensor in tensors.values())
    dims = f"; its dims are {', '.join(sorted(symbols))}" if symbols else ""
    return f"its inputs are {inputs}{dims}"


def _resolve(tensor: Declared, shapes: ShapeBindings, sizes: Mapping[str, int]) -> Value:
    bound = shapes.get(tensor.name)
    if isinstance(bound, tuple):
        return Value(tensor.name, bound, tensor.dtype)
    if tensor.dims is None:
        return Value(tensor.name, None, tensor.dtype)
    dims = [sizes.get(dim) if isinstance(dim, str) else dim for dim in tensor.dims]
    known = tuple(dim for dim in dims if dim is not None)
    return Value(tensor.name, known if len(known) == len(dims) else None, tensor.dtype)


def _spell(tensor: Declared, sizes: Mapping[str, int]) -> str:
    if tensor.dims is None:
        return f"{tensor.name}:(any shape)"
    dims = [str(sizes.get(dim, dim) or "?") if isinstance(dim, str) else str(dim) for dim in tensor.dims]
    return f"{tensor.name}:{'x'.join(dims)}"


def _refuse_unbound(unbound: Sequence[Declared], sizes: Mapping[str, int]) -> None:
    """Raises the error that lists every unbound dim and the option to bind it."""
    listed: list[str] = []
    typed: list[str] = []
    for tensor in unbound:
        dims = tensor.dims or ()
        free = [dim for dim in dims if isinstance(dim, str) and dim not in sizes]
        listed.append(f"{_spell(tensor, sizes)} ({_describe(free) if tensor.dims else 'rank unknown'})")
        if tensor.dims is None or "" in free:
            typed.append(f"--shape {_suggest(tensor, sizes)}")
        else:
            typed += [f"--shape {dim}=1" for dim in free]
    raise ShapeError(
        f"the model has dims without a size: {', '.join(listed)}", f"bind them, e.g. {' '.join(dict.fromkeys(typed))}"
    )


def _describe(free: Sequence[str]) -> str:
    nameless = sum(1 for dim in free if not dim)
    named = list(dict.fromkeys(dim for dim in free if dim))
    return ", ".join(named + ([f"{nameless} without a name"] if nameless else [])) + " unbound"


def _suggest(tensor: Declared, sizes: Mapping[str, int]) -> str:
    if tensor.dims is None:
        return f"{tensor.name}:1x3x224x224"
    dims = [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in tensor.dims]
    return f"{tensor.name}:{'x'.join(map(str, dims))}"
