"""Whether two graphs are the same, field by field and bit by bit, and where they first differ."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.text.literals import raw_bytes


def graphs_equal(a: Graph, b: Graph) -> bool:
    """Whether both graphs have the same name, opset, values, constants (bit for bit) and nodes, in the same order."""
    return first_difference(a, b) is None


def first_difference(a: Graph, b: Graph) -> str | None:
    """The first difference between two graphs, human-readable; None if they are equal.

    The order of inputs, outputs and nodes counts, the order of values, constants and opsets does not.
    """
    for what in ("name", "inputs", "outputs"):
        if getattr(a, what) != getattr(b, what):
            return f"{what}: {getattr(a, what)!r} and {getattr(b, what)!r}"
    return (
        _mapping_difference("opset", a.opset, b.opset)
        or _nodes_difference(a.nodes, b.nodes)
        or _mapping_difference("value", a.values, b.values)
        or _constants_difference(a.constants, b.constants)
    )


def same_field(a: object, b: object) -> bool:
    """Exact equality: the types must match, NaN equals NaN, 0.0 differs from -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_field, a, b))
    if is_dataclass(a):
        return all(same_field(getattr(a, item.name), getattr(b, item.name)) for item in fields(a))
    return a == b


def same_array(a: Array, b: Array) -> bool:
    """Whether element type, shape and every bit agree."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object:
        return bool(a.ravel().tolist() == b.ravel().tolist())
    return bool(np.array_equal(raw_bytes(a), raw_bytes(b)))


def _nodes_difference(a: Sequence[Node], b: Sequence[Node]) -> str | None:
    for index, (first, second) in enumerate(zip(a, b, strict=False)):
        for item in fields(Node):
            left, right = getattr(first, item.name), getattr(second, item.name)
            if not same_field(left, right):
                return f"node {index} ({first.name!r}), {item.name}: {left!r} and {right!r}"
    if len(a) != len(b):
        return f"nodes: {len(a)} and {len(b)}"
    return None


def _mapping_difference(what: str, a: Mapping[str, object], b: Mapping[str, object]) -> str | None:
    for key in dict.fromkeys([*a, *b]):
        if not same_field(a.get(key), b.get(key)):
            return f"{what} {key!r}: {a.get(key)!r} and {b.get(key)!r}"
    return None


def _constants_difference(a: Mapping[str, Array], b: Mapping[str, Array]) -> str | None:
    for key in dict.fromkeys([*a, *b]):
        if key not in a or key not in b:
            return f"constant {key!r}: only in the {'first' if key in a else 'second'} graph"
        if not same_array(a[key], b[key]):
            return f"constant {key!r}: {a[key].dtype.name}{a[key].shape} arrays differ"
    return None
