"""Ways to run a convolution on a GPU: by the library, or by a tensor made first, in column or in window order.

- im2col puts down every window as a row, N Ho Wo x C kh kw, and multiplies that matrix.
- im2win puts down, for every row of results, the columns under it, N C Ho W kh: an element once for all windows of the
  row. The product is the same; its rows overlap.
- direct puts down nothing: every result by itself, without reuse that tiles could exploit.

In window order (Lu, Chu and Liu, Im2win: An Efficient Convolution Paradigm on GPU, Euro-Par 2023) a window is a run of
kh kw elements a channel, and the next one starts a stride of columns later. That is worth its copy only where windows
overlap in both directions, kh and kw larger than the strides, and where the tensor is smaller than in column order. A
tensor of all images may take more than the workspace: then as many images are done at a time as fit, each time with
launches of its own.
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
    """A convolution as numbers.

    Args:
        op: the convolution.
        source: of its input, [N, C, H, W].
        result: [N, O, Ho, Wo].
        more: elements of what else it reads, as a bias.
    """

    op: Conv2d
    source: Shape
    result: Shape
    more: int = 0

    @classmethod
    def of(cls, op: Conv2d, inputs: Sequence[Value | None], output: Value) -> Sizes | None:
        """Of a convolution in a graph; None where shapes are not known."""
        source, result = inputs[0].shape if inputs[0] is not None else None, output.shape
        if source is None or result is None or len(source) != 4 or 0 in (*source, *result):
            return None
        return cls(op, source, result, sum(value.elements for value in inputs[2:] if value is not None))

    @property
    def images(self) -> int:
        """N."""
        return self.source[0]

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the input with its padding."""
        top, left, bottom, right = self.op.pads
        return self.source[2] + top + bottom, self.source[3] + left + right

    @property
    def depth(self) -> int:
        """Multiply-accumulates of one result."""
        return self.source[1] // self.op.groups * math.prod(self.op.kernel)

    @property
    def macs(self) -> int:
        """Of all results."""
        return math.prod(self.result) * self.depth

    @property
    def weights(self) -> int:
        """Elements of the weights."""
        return self.result[1] * self.depth

    @property
    def is_pointwise(self) -> bool:
        """Whether its windows are its input's elements as they lie."""
        return self.op.kernel == self.op.strides == (1, 1) and not any(self.op.pads)

    def columns(self) -> int:
        """Elements of one image in column order: every window by itself."""
        return self.source[1] * math.prod(self.op.kernel) * math.prod(self.result[2:])

    def windows(self) -> int:
        """Elements of one image in window order: every column of kh elements once for all windows of a row."""
        return self.source[1] * self.result[2] * self.padded[1] * self.op.kernel[0]

    @property
    def has_window_order(self) -> bool:
        """Whether neighbours share elements in both directions, without which window order is a plain copy; and, where
        dilated windows leave columns out or maps are narrow, whether it is smaller than column order at all."""
        overlap = all(size > stride for size, stride in zip(self.op.kernel, self.op.strides, strict=True))
        return overlap and self.windows() < self.columns()


@dataclass(frozen=True)
class Lowered:
    """A convolution run in one of the ways.

    Args:
        algorithm: which.
        workspace: elements that it puts down at a time.
        images: how many are done at a time.
        kernels: what runs, each with how often.
    """

    algorithm: Algorithm
    workspace: int
    images: int
    kernels: tuple[tuple[GpuWork, int], ...]


def lowered(sizes: Sizes, choice: ConvolutionChoice, element_bytes: int) -> Iterator[Lowered]:
    """The ways beside the library's own that a GPU offers for a convolution and has the workspace for."""
    if "direct" in choice.algorithms:
        moved, chain_us = _operand_bytes(sizes, element_bytes), sizes.depth * choice.direct_step_us
        work = DepthwiseWork(sizes.macs, moved, choice.direct_macs_per_sm_cycle, chain_us)
        yield Lowered("direct", 0, sizes.images, ((work, 1),))
    if sizes.is_pointwise:
        return  # a product as it lies in memory, which the library's kernels know
    per_image = {"im2col": sizes.columns(), "im2win": sizes.windows() if sizes.has_window_order else 0}
    limit = choice.workspace_mib * MIB
    for algorithm in choice.algorithms:
        elements = per_image.get(algorithm, 0)
        if elements and elements * element_bytes <= limit:
            at_a_time = min(sizes.images, int(limit // (elements * element_bytes)))
            yield _made_first(algorithm, sizes, elements, at_a_time, element_bytes)


def _made_first(algorithm: Algorithm, sizes: Sizes, elements: int, at_a_time: int, element_bytes: int) -> Lowered:
    """The copy that makes the tensor, and the product that reads it, so many images at a time.

    Each byte of the tensor passes DRAM twice, written and read; the tiles of the product read it through the cache as
    those of any product do.
    """
    full, rest = divmod(sizes.images, at_a_time)
    kernels = [(images, times) for images, times in ((at_a_time, full), (rest, 1)) if images and times]
    sequence: list[tuple[GpuWork, int]] = []
    for images, times in kernels:
        read = images * math.prod(sizes.source[1:])
        made, results = images * elements, images * math.prod(sizes.result[1:])
        sequence.append((StreamWork(0, (read + made) * element_bytes), times))
        product = MatrixWork(
            m=images * math.prod(sizes.result[2:]),
            n=sizes.result[1] // sizes.op.groups,
            k=sizes.depth,
            groups=sizes.op.groups,
            bytes=(made + sizes.weights + sizes.more + results) * element_bytes,
            whole_k=algorithm == "im2win",
        )
        sequence.append((product, times))
    return Lowered(algorithm, at_a_time * elements, at_a_time, tuple(sequence))


def _operand_bytes(sizes: Sizes, element_bytes: int) -> int:
    elements = math.prod(sizes.source) + sizes.weights + sizes.more + math.prod(sizes.result)
    return elements * element_bytes
