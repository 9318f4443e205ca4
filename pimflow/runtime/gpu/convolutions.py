"""Ways to run a convolution on a GPU: with the library, directly, or from a tensor in column or window order.

- im2col writes every window as a row of a matrix, N Ho Wo x C kh kw, and multiplies that matrix.
- im2win writes, for every row of results, the columns under it, N C Ho W kh: each element once for all windows of the
  row. The product is the same; its rows overlap.
- direct writes no tensor: every result is computed by itself, without reuse that tiles could exploit.

In window order (Lu, Chu and Liu, Im2win: An Efficient Convolution Paradigm on GPU, Euro-Par 2023) a window is a run of
kh kw elements per channel, and the next window starts a stride of columns later. That pays for its copy only if windows
overlap in both directions (kh and kw larger than the strides), and if the tensor is smaller than in column order. If
the tensor of all images exceeds the workspace, images are processed in batches that fit, with separate launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pimflow.ir import Conv2d, Shape, Value
from pimflow.records import dataclass
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, MatrixWork, StreamWork
from pimflow.targets.schema.gpu import Algorithm, ConvolutionChoice

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """The sizes of a convolution.

    Args:
        op: the convolution.
        source: shape of its input, [N, C, H, W].
        result: shape of its result, [N, O, Ho, Wo].
        more: elements of its other operands, such as a bias.
    """

    op: Conv2d
    source: Shape
    result: Shape
    more: int = 0

    @classmethod
    def of(cls, op: Conv2d, inputs: Sequence[Value | None], output: Value) -> Sizes | None:
        """The sizes of a convolution in a graph; None if shapes are unknown or empty."""
        source, result = inputs[0].shape if inputs[0] is not None else None, output.shape
        if source is None or result is None or len(source) != 4 or 0 in (*source, *result):
            return None
        return cls(op, source, result, sum(value.elements for value in inputs[2:] if value is not None))

    @property
    def images(self) -> int:
        """The number of images, N."""
        return self.source[0]

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the input with its padding."""
        top, left, bottom, right = self.op.pads
        return self.source[2] + top + bottom, self.source[3] + left + right

    @property
    def depth(self) -> int:
        """Multiply-accumulates per result."""
        return self.source[1] // self.op.groups * math.prod(self.op.kernel)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all results."""
        return math.prod(self.result) * self.depth

    @property
    def weights(self) -> int:
        """Elements of the weights."""
        return self.result[1] * self.depth

    @property
    def is_pointwise(self) -> bool:
        """Whether its windows are single elements of its input, in their order."""
        return self.op.kernel == self.op.strides == (1, 1) and not any(self.op.pads)

    def columns(self) -> int:
        """Elements of one image in column order, with all windows separate."""
        return self.source[1] * math.prod(self.op.kernel) * math.prod(self.result[2:])

    def windows(self) -> int:
        """Elements of one image in window order, with each column of kh elements once for all windows of a row."""
        return self.source[1] * self.result[2] * self.padded[1] * self.op.kernel[0]

    @property
    def has_window_order(self) -> bool:
        """Whether neighbouring windows overlap in both directions, without which window order is a plain copy, and
        whether it is smaller than column order, which dilated windows or narrow maps may prevent."""
        overlap = all(size > stride for size, stride in zip(self.op.kernel, self.op.strides, strict=True))
        return overlap and self.windows() < self.columns()


@dataclass(frozen=True)
class Lowered:
    """A convolution with an algorithm other than the library's.

    Args:
        algorithm: the algorithm.
        workspace: elements of the tensor that it writes at a time.
        images: number of images processed at a time.
        kernels: the kernels, each with its number of executions.
    """

    algorithm: Algorithm
    workspace: int
    images: int
    kernels: tuple[tuple[GpuWork, int], ...]


def lowered(sizes: Sizes, choice: ConvolutionChoice, element_bytes: int) -> Iterator[Lowered]:
    """The algorithms other than the library's that a GPU offers for a convolution and has the workspace for."""
    if "direct" in choice.algorithms:
        moved, chain_us = _operand_bytes(sizes, element_bytes), sizes.depth * choice.direct_step_us
        work = DepthwiseWork(sizes.macs, moved, choice.direct_macs_per_sm_cycle, chain_us)
        yield Lowered("direct", 0, sizes.images, ((work, 1),))
    if sizes.is_pointwise:
        return  # a product of the data as stored, which the library's kernels handle
    per_image = {"im2col": sizes.columns(), "im2win": sizes.windows() if sizes.has_window_order else 0}
    limit = choice.workspace_mib * MIB
    for algorithm in choice.algorithms:
        elements = per_image.get(algorithm, 0)
        if elements and elements * element_bytes <= limit:
            at_a_time = min(sizes.images, int(limit // (elements * element_bytes)))
            yield _copy_and_product(algorithm, sizes, elements, at_a_time, element_bytes)


def _copy_and_product(algorithm: Algorithm, sizes: Sizes, elements: int, at_a_time: int, element_bytes: int) -> Lowered:
    """The copy that writes the tensor and the product that reads it, for `at_a_time` images at a time.

    Each byte of the tensor passes DRAM twice, for the write and the read; the tiles of the product read it through the
    cache like those of any product.
    """
    full, rest = divmod(sizes.images, at_a_time)
    kernels = [(images, times) for images, times in ((at_a_time, full), (rest, 1)) if images and times]
    sequence: list[tuple[GpuWork, int]] = []
    for images, times in kernels:
        read = images * math.prod(sizes.source[1:])
        written, results = images * elements, images * math.prod(sizes.result[1:])
        sequence.append((StreamWork(0, (read + written) * element_bytes), times))
        product = MatrixWork(
            m=images * math.prod(sizes.result[2:]),
            n=sizes.result[1] // sizes.op.groups,
            k=sizes.depth,
            groups=sizes.op.groups,
            bytes=(written + sizes.weights + sizes.more + results) * element_bytes,
            whole_k=algorithm == "im2win",
        )
        sequence.append((product, times))
    return Lowered(algorithm, at_a_time * elements, at_a_time, tuple(sequence))


def _operand_bytes(sizes: Sizes, element_bytes: int) -> int:
    elements = math.prod(sizes.source) + sizes.weights + sizes.more + math.prod(sizes.result)
    return elements * element_bytes
