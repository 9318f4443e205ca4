"""Closed-form signal statistics: the mean and variance of a channel after a layer, for inputs of mean 0, variance 1.

A freshly drawn network is insensitive to its input: activations with a positive mean drown it, and the logits of any
two images agree. The zoo therefore centres every layer (with the running mean of a batch norm, or a bias) on the actual
mean of its input, which mean-field theory gives without running the network. It treats channels and pixels as
independent and pre-activations as normal (Poole et al., "Exponential expressivity in deep neural networks", NeurIPS
2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from .writer import Floats

Function = Callable[[Floats], Floats]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_BELOW = np.array([0.5 * (1.0 + math.erf(node / math.sqrt(2.0))) for node in _NODES])


def identity(x: Floats) -> Floats:
    """x."""
    return x


def relu(x: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def relu6(x: Floats) -> Floats:
    """x clipped to [0, 6]."""
    return np.clip(x, 0.0, 6.0)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def hard_sigmoid(x: Floats) -> Floats:
    """x / 6 + 1/2, clipped to [0, 1]."""
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def hard_swish(x: Floats) -> Floats:
    """x * hard_sigmoid(x)."""
    return x * hard_sigmoid(x)


def moments(function: Function, mean: Floats, variance: Floats, largest_of: int = 1) -> tuple[Floats, Floats]:
    """Mean and variance of function(z), z normal with the given mean and variance, per channel.

    With `largest_of` = n, of the largest among n independent draws (max pooling after a rising function): the largest
    of n normals has density n * pdf(z) * cdf(z) ** (n - 1). Computed by Gauss-Hermite quadrature.
    """
    z = np.multiply.outer(np.sqrt(variance), _NODES)
    z += mean[:, None]
    weights = _WEIGHTS * largest_of * _BELOW ** (largest_of - 1)
    weights = weights / weights.sum()
    values = function(z)
    first = values @ weights
    second = np.square(values, out=z) @ weights
    return first, np.maximum(second - first**2, 1e-12)


@cache
def tap_coverage(size: int, kernel: int, stride: int, pad: int) -> Floats:
    """Share of output positions at which each kernel tap reads the input, not its zero padding, along one axis;
    read-only."""
    out = (size + 2 * pad - kernel) // stride + 1
    positions = np.arange(out)[None, :] * stride + np.arange(kernel)[:, None] - pad
    shares = np.asarray(((positions >= 0) & (positions < size)).mean(axis=1))
    shares.flags.writeable = False
    return shares
