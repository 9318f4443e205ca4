"""A whole model on a GPU: the kernels that `pimflow profile` times, each on the results of those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pimflow.bundle.source import model_source
from pimflow.compiler import clean_graph
from pimflow.ir import Concat, Graph, Node, Reshape
from pimflow.options import Options
from pimflow.runtime.gpu.profiling_cuda import CUDA_KERNELS


class ModelChain:
    """A model in half precision.

    Nodes that are fused into others, and those that PyTorch has no kernel for, pass their first operand on, or values
    of the right shape. `left_out` has the ops of the latter.
    """

    def __init__(self, torch: Any, model: str) -> None:
        self._torch = torch
        self._graph: Graph = clean_graph(model_source(model), Options()).graph
        self.left_out: list[str] = []
        self.run = 0
        self._constants = {
            name: self._tensor(value.shape)
            for name in self._graph.constants
            if (value := self._graph.value(name)).shape
        }
        self._inputs = {name: self._tensor(self._graph.value(name).shape) for name in self._graph.inputs}
        self._replaced: dict[str, Any] = {}

    def captured(self) -> Callable[[], None]:
        """A replay of all kernels."""
        torch = self._torch
        for _ in range(3):
            self._all()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._all()
        graph.replay()
        torch.cuda.synchronize()
        replay: Callable[[], None] = graph.replay
        return replay

    def _all(self) -> None:
        values, self.left_out, self.run = dict(self._constants) | self._inputs, [], 0
        for node in self._graph.nodes:
            found = self._one(node, [values.get(name) for name in node.inputs if name])
            for name in node.outputs:
                values[name] = found

    def _one(self, node: Node, tensors: list[Any]) -> Any:
        shape = self._graph.value(node.outputs[0]).shape
        if node.placement.fused_into:
            return tensors[0]
        moved = self._moved(node, tensors, shape)
        if moved is not None:
            return moved
        rule = CUDA_KERNELS.find(node.op)
        call = (
            None if rule is None or any(tensor is None for tensor in tensors) else rule(self._torch, node.op, tensors)
        )
        if call is None:
            self.left_out.append(node.kind)
            if node.name not in self._replaced:
                self._replaced[node.name] = self._tensor(shape or (1,))
            return self._replaced[node.name]
        self.run += 1
        return call()

    def _moved(self, node: Node, tensors: list[Any], shape: Any) -> Any:
        torch, op = self._torch, node.op
        if isinstance(op, Reshape):
            return tensors[0].reshape(shape)
        if isinstance(op, Concat):
            self.run += 1
            return torch.cat(tensors, op.axis)
        return None

    def _tensor(self, shape: Any) -> Any:
        tensor = self._torch.randn(tuple(shape), device="cuda", dtype=self._torch.float16)
        return tensor.to(memory_format=self._torch.channels_last) if len(shape) == 4 else tensor
