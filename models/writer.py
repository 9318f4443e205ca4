"""`Writer`: an ONNX graph under construction, with seeded weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

Floats = npt.NDArray[np.float64]

OPSET = 17
IR_VERSION = 8

MIN_APART_BYTES = 1 << 16
"""The minimum size of a constant that is stored in `apart`."""

_TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
# Significant bits to keep of sums (means, variances, and values derived from them). Libraries add in different orders
# and differ in the last bits of exp; the rounded values are the same with all of them, and so are the bytes of a model.
_SETTLED_BITS = 12


class Writer:
    """An ONNX graph under construction; a node's output has the node's name by default.

    Trained parameters, and nothing else, have names that end in `.weight` or `.bias`.

    Args:
        name: the graph's name.
        seed: seed of all weights; the same seed gives the same bytes.
        weights: whether weights are drawn and stored. If not, the model is a skeleton: all nodes and shapes, and
            weights without data. It is fast to make, but cannot be run.
        apart: whether large constants are stored in `apart` and not copied into the model, which then only names them.
    """

    def __init__(self, name: str, seed: int, weights: bool = True, apart: bool = False) -> None:
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="pimflow-zoo")
        self._model.opset_import.add(version=OPSET)
        self._graph = self._model.graph
        self._graph.name = name
        self._rng = np.random.default_rng(seed)
        self._constants: set[str] = set()
        self.has_weights = weights
        self.apart: dict[str, npt.NDArray[Any]] = {}
        self._least_apart_bytes = MIN_APART_BYTES if apart else math.inf

    def value_input(self, name: str, shape: tuple[int | str, ...], kind: int = TensorProto.FLOAT) -> str:
        """An input of the model, of an ONNX element type."""
        self._graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def value_output(self, name: str, shape: tuple[int | str, ...]) -> None:
        """Make a float32 value an output of the model."""
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def finish(self) -> onnx.ModelProto:
        """The model."""
        return self._model

    def node(self, op_type: str, name: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        return self.node_of_many(op_type, name, inputs, [name if output is None else output], **attributes)[0]

    def node_of_many(
        self, op_type: str, name: str, inputs: tuple[str, ...], outputs: list[str], **attributes: Any
    ) -> list[str]:
        """Add a node with outputs of these names; "" is an absent output."""
        node = self._graph.node.add(op_type=op_type, name=name, input=inputs, output=outputs)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        return outputs

    def scalar(self, name: str, value: float) -> str:
        """A float32 constant, stored once under its name."""
        return self.shared(name, np.float32(value))

    def integers(self, name: str, *values: int) -> str:
        """A one-dimensional int64 constant, stored once under its name: a shape, or sizes."""
        return self.shared(name, np.array(values, np.int64))

    def shared(self, name: str, array: npt.NDArray[Any] | np.generic) -> str:
        """A constant that several nodes may use: stored on its first use."""
        return name if name in self._constants else self.constant(name, array)

    def constant(self, name: str, array: npt.NDArray[Any] | np.generic) -> str:
        """Store an array as int64 if it holds integers, otherwise as float32."""
        kind = np.dtype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32)
        self._constants.add(name)
        # Filled in place: appending a finished tensor would copy it.
        tensor = self._graph.initializer.add(name=name, data_type=_TYPES[kind], dims=array.shape)
        if array.size * kind.itemsize >= self._least_apart_bytes:
            tensor.data_location = TensorProto.EXTERNAL
            self.apart[name] = np.ascontiguousarray(array, dtype=kind)
            self.apart[name].flags.writeable = False
        else:
            tensor.raw_data = np.ascontiguousarray(array, dtype=kind.newbyteorder("<")).tobytes()
        return name

    def weight(self, name: str, shape: tuple[int, ...], std: float, centred: bool = False) -> str:
        """Draw and store weights (for a skeleton, only their shape). `centred`: every column adds up to 0."""
        if not self.has_weights:
            return self.reserve(name, shape)
        weight = self.draw(shape, std)
        if centred:
            weight -= settled(weight.mean(axis=0, dtype=np.float64)).astype(np.float32)
        return self.constant(name, weight)

    def reserve(self, name: str, shape: tuple[int, ...]) -> str:
        """A skeleton's weights: a shape without data."""
        self._graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=shape)
        return name

    def draw(self, shape: tuple[int, ...], std: float) -> npt.NDArray[np.float32]:
        """Uniform weights of mean 0 and standard deviation `std`."""
        weight = self._rng.random(shape, dtype=np.float32)
        weight -= np.float32(0.5)
        weight *= np.float32(settled(std * np.sqrt(12.0)))
        return weight

    def uniform(self, bounds: tuple[float, float], count: int) -> Floats:
        """Numbers from an interval, for biases and the like."""
        return self._rng.uniform(*bounds, count)


def settled(values: npt.ArrayLike) -> Floats:
    """Round numbers to a few significant bits, so that they do not depend on the library that computed them."""
    fraction, exponent = np.frexp(np.asarray(values, np.float64))
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, _SETTLED_BITS)), exponent - _SETTLED_BITS))
