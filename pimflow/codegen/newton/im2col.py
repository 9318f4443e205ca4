"""The views that streams have of a problem's tensors: source as P x K, weights as K x N, result as P x N.

`Geometry` is the problem in the machine's units. The views are affine (mixed-radix) index maps, so that gathering is
a single `take` from a zero-padded array.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pimflow.codegen.work import ConvProblem, MatrixProblem
from pimflow.ir import Array
from pimflow.records import NamedTuple, dataclass
from pimflow.targets import PimSpec

Positions = npt.NDArray[np.int64]
Radix = tuple[tuple[int, int], ...]
"""(count, stride) of each digit, slowest first."""


class Geometry(NamedTuple):
    """A problem as `groups` products of pixels x depth by depth x columns, in slots and tiles of a machine.

    Weight group g reads source pixels from `g * pixel_step` on and columns of K from `g * k_step` on, and writes result
    channels from `g * channel_step` on (tiles are padded to whole banks, so the channels of two groups never overlap).
    """

    groups: int
    pixels: int
    depth: int
    columns: int
    slots: int  # ceil(depth / multipliers)
    tiles: int  # ceil(columns / banks)
    pixel_step: int
    k_step: int
    channel_step: int
    row_pixels: int  # pixels of one output row
    slot_elements: int  # elements of one slot: multipliers per bank

    @property
    def ragged(self) -> bool:
        """Whether the last slot of K is incomplete."""
        return self.depth % self.slot_elements != 0

    @property
    def last_slot_elements(self) -> int:
        """Elements of the last slot of K."""
        return self.depth - (self.slots - 1) * self.slot_elements

    @property
    def least_comps(self) -> int:
        """The number of COMPs of any correct set of streams: slots x pixels x tiles, over all weight groups."""
        return self.groups * self.pixels * self.slots * self.tiles

    @property
    def least_slots(self) -> int:
        """Slots to be written if each is written to a buffer once, for COMPs with one column for buffer and row."""
        return self.groups * self.pixels * self.slots


def geometry(problem: MatrixProblem, pim: PimSpec) -> Geometry:
    """The problem in the machine's units."""
    groups, depth, columns = problem.groups, problem.depth, problem.columns
    tiles = -(-columns // pim.banks)
    slots = -(-depth // pim.multipliers)
    if isinstance(problem, ConvProblem):
        steps = (0, depth, tiles * pim.banks) if groups > 1 else (0, 0, 0)
        width = problem.out_w
        pixels = problem.batch * problem.out_h * width
        return Geometry(groups, pixels, depth, columns, slots, tiles, *steps, width, pim.multipliers)
    pixels = problem.m if problem.batched_rhs else problem.pixels
    step = pixels if groups > 1 else 0
    return Geometry(groups, pixels, depth, columns, slots, tiles, step, 0, 0, pixels, pim.multipliers)


def _digits(index: Positions, radix: Radix) -> Positions:
    """The sum of digit * stride of every index in a mixed-radix system."""
    total = np.zeros_like(index)
    rest = index
    for count, stride in reversed(radix[1:]):
        rest, digit = np.divmod(rest, count)
        total += digit * stride
    total += rest * radix[0][1]
    return total


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source tensor as a matrix of pixels by columns of K (all weight groups side by side).

    Element (pixel, k) is element `digits(pixel) + digits(k)` of the tensor, zero-padded by `pads`
    (top, left, bottom, right; none for a matrix) and flattened.
    """

    shape: tuple[int, ...]
    pads: tuple[int, int, int, int]
    pixel_radix: Radix
    k_radix: Radix

    @property
    def pixels(self) -> int:
        """Rows of the matrix."""
        return math.prod(count for count, _ in self.pixel_radix)

    @property
    def depth(self) -> int:
        """Columns of the matrix."""
        return math.prod(count for count, _ in self.k_radix)

    def flatten(self, source: Array, zero: float = 0.0) -> Array:
        """The padded tensor as one vector, for `gather`; `zero` is its padding value, the element that represents 0."""
        array = np.asarray(source).reshape(self.shape)
        if any(self.pads):
            top, left, bottom, right = self.pads
            array = np.pad(array, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=zero)
        return array.ravel()

    def gather(self, flat: Array, pixel: Positions, k: Positions) -> Array:
        """Elements [len(pixel), len(k)] of the matrix; `flat` comes from `flatten`.

        Raises:
            IndexError: a pixel or column lies outside the matrix.
        """
        _check_range(pixel, self.pixels, "pixel")
        _check_range(k, self.depth, "column of K")
        index = _digits(pixel, self.pixel_radix)[:, None] + _digits(k, self.k_radix)[None, :]
        return np.take(flat, index)


def _check_range(index: Positions, stop: int, what: str) -> None:
    if index.size and (np.min(index) < 0 or np.max(index) >= stop):
        raise IndexError(f"a {what} lies outside 0 .. {stop - 1}")


def source_view(problem: MatrixProblem, window_block: int = 0) -> SourceView:
    """The source view of a problem; `window_block` as in `Mapping`."""
    if not isinstance(problem, ConvProblem):
        return SourceView((problem.pixels, problem.k), (0, 0, 0, 0), ((problem.pixels, problem.k),), ((problem.k, 1),))
    top, left, bottom, right = problem.pads
    height, width = problem.in_h + top + bottom, problem.in_w + left + right
    plane = height * width
    pixel_radix = (
        (problem.batch, problem.in_channels * plane),
        (problem.out_h, problem.strides[0] * width),
        (problem.out_w, problem.strides[1]),
    )
    channels = problem.in_channels // problem.groups
    rows, cols = (problem.kernel[0], problem.dilations[0] * width), (problem.kernel[1], problem.dilations[1])
    inner = _k_radix((channels, plane), rows, cols, window_block)
    shape = (problem.batch, problem.in_channels, problem.in_h, problem.in_w)
    return SourceView(shape, problem.pads, pixel_radix, ((problem.groups, channels * plane), *inner))


def _k_radix(channel: tuple[int, int], row: tuple[int, int], col: tuple[int, int], block: int) -> Radix:
    if not block:
        return (channel, row, col)
    return ((channel[0] // block, channel[1] * block), col, row, (block, channel[1]))


@dataclass(frozen=True, slots=True)
class WeightView:
    """A weight tensor as [groups, K, N], with K in the order of the source view."""

    k_radix: Radix | None  # for the flattened [channels, kh, kw] of a convolution; None for a matrix [.., K, N]
    groups: int
    depth: int
    columns: int

    def matrix(self, weights: Array) -> Array:
        """The weights as [groups, K, N]."""
        array = np.asarray(weights)
        if self.k_radix is None:
            return array.reshape(self.groups, self.depth, self.columns)
        flat = array.reshape(self.groups, self.columns, self.depth)
        return np.swapaxes(flat[:, :, _digits(np.arange(self.depth), self.k_radix)], 1, 2)


def weight_view(problem: MatrixProblem, window_block: int = 0) -> WeightView:
    """The weight view of a problem; `window_block` as in `Mapping`."""
    if not isinstance(problem, ConvProblem):
        return WeightView(None, problem.groups, problem.depth, problem.columns)
    rows, cols = problem.kernel
    channels = problem.in_channels // problem.groups
    radix = _k_radix((channels, rows * cols), (rows, cols), (cols, 1), window_block)
    return WeightView(radix, problem.groups, problem.depth, problem.columns)


@dataclass(frozen=True, slots=True)
class ResultView:
    """The result as P pixels by padded channels, and the tensor that it represents.

    A stream's result channel c is real channel `c % padded` of weight group `c // padded` if that is below `columns`;
    the other channels are bank padding and are dropped.
    """

    shape: tuple[int, ...]
    pixels: int
    groups: int  # weight groups side by side in the channel dimension
    padded: int  # channels of one group, padded to whole tiles
    columns: int
    spatial: bool  # result is NCHW (pixels are batch x rows x columns), not a matrix

    @property
    def channels(self) -> int:
        """Total number of padded channels."""
        return self.groups * self.padded

    def tensor(self, matrix: Array) -> Array:
        """The tensor for a [pixels, channels] result."""
        real = matrix.reshape(self.pixels, self.groups, self.padded)[:, :, : self.columns]
        if not self.spatial:
            return real.reshape(self.shape)
        batch, channels, height, width = self.shape
        return np.ascontiguousarray(real.reshape(batch, height, width, channels).transpose(0, 3, 1, 2))


def result_view(problem: MatrixProblem, shape: Geometry, pim: PimSpec) -> ResultView:
    """The result view of a problem on a machine."""
    padded = shape.tiles * pim.banks
    if isinstance(problem, ConvProblem):
        tensor = (problem.batch, problem.out_channels, problem.out_h, problem.out_w)
        return ResultView(tensor, problem.pixels, problem.groups, padded, problem.columns, True)
    batched = problem.batch > 1 or problem.batched_rhs
    matrix = (problem.batch, problem.m, problem.n) if batched else (problem.m, problem.n)
    return ResultView(matrix, problem.pixels, 1, padded, problem.columns, False)
