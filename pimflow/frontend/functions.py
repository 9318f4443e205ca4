"""Inlining of local functions.

A function declares the opset of its operators. ONNX Runtime, which is the reference for what a model computes, uses the
model's opset instead: it refuses an operator that is not valid there, and so does this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import inliner

from pimflow.errors import ModelError
from pimflow.onnxio.captures import subgraphs
from pimflow.onnxio.tensors import ONNX_ERRORS

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""

_OWN_DOMAINS = ("", "ai.onnx")
"""Names of the domain of ONNX's own operators."""

_REINTERPRETED: Mapping[str, int] = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "DFT": 20}
"""Operators whose meaning changes in this opset although their form does not."""


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions; the given one may be modified.

    Raises:
        ModelError: an operator of a function has another meaning in the model's opset, or a call cannot be inlined.
    """
    opset = _own_opset(model.opset_import)
    functions = {function_key(function): function for function in model.functions}
    for function in model.functions:
        _move(function, opset)
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in all_nodes(nodes):
            _give_defaults(node, functions.get(function_key(node)))
    try:
        return inliner.inline_local_functions(model)
    except ONNX_ERRORS as error:
        raise ModelError(f"the model's functions cannot be inlined: {error}") from error


def _give_defaults(call: onnx.NodeProto, function: onnx.FunctionProto | None) -> None:
    """Adds the defaults of attributes that a call omits, in place: onnx's inliner does not."""
    given = {attribute.name for attribute in call.attribute}
    for default in function.attribute_proto if function is not None else ():
        if default.name not in given:
            call.attribute.append(default)


def function_key(item: onnx.FunctionProto | onnx.NodeProto) -> FunctionKey:
    """The key under which a function is called."""
    name = item.name if isinstance(item, onnx.FunctionProto) else item.op_type
    return "" if item.domain == "ai.onnx" else item.domain, name, item.overload


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for body in subgraphs(node.attribute):
            yield from all_nodes(body.node)


def _own_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """The version of ONNX's own operators; 0 if there is none."""
    return max((opset.version for opset in imports if opset.domain in _OWN_DOMAINS), default=0)


def _move(function: onnx.FunctionProto, opset: int) -> None:
    """Moves a function to the model's opset, in place."""
    own = _own_opset(function.opset_import)
    if not own or not opset or own == opset:
        return
    for node in all_nodes(function.node):
        changed = _REINTERPRETED.get(node.op_type, 0) if node.domain in _OWN_DOMAINS else 0
        if min(own, opset) < changed <= max(own, opset):
            raise ModelError(
                f"the function {function.name!r} is of opset {own} and the model of {opset}: {node.op_type} has "
                f"another meaning from {changed} on, and ONNX Runtime uses the model's",
                "export the model with one opset",
            )
    for item in function.opset_import:
        if item.domain in _OWN_DOMAINS:
            item.version = opset
