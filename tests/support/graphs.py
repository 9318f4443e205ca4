"""Graphs that several tests share, built by hand."""

from __future__ import annotations

import random

from pimflow.ir import Builder, Graph, MatMul


def attention(*, fused: bool = False) -> Graph:
    """Scores and context of two heads over five tokens of eight channels; `fused`: from a single product."""
    build = Builder("attention")
    x = build.input(1, 5, 8)
    parts = build.split(build.matmul(x, 24), 2, 8, 8, 8) if fused else [build.matmul(x, 8) for _ in range(3)]
    query, key, value = (
        build.transpose(build.reshape(part, 1, 5, 2, 4), *perm)
        for part, perm in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    scores = build.onnx("Softmax", build.op(MatMul(), query, key), axis=-1)
    context = build.transpose(build.op(MatMul(), scores, value), 0, 2, 1, 3)
    return build.graph(build.matmul(build.reshape(context, 1, 5, 8), 8))


class ConvNet(Builder):
    """A `Builder` of convolutional networks as clean-ups leave them: windows keep the size, activations are fused."""

    def layer(self, x: str, channels: int, kernel: int = 1, stride: int = 1) -> str:
        """A convolution without bias, padded by half its kernel."""
        return self.conv(x, channels, kernel, stride, pad=kernel // 2, bias=False)

    def wise(self, x: str, stride: int = 1) -> str:
        """A 3x3 depthwise convolution without bias."""
        return self.depthwise(x, 3, stride, bias=False)

    def fused_relu(self, x: str) -> str:
        """A Relu in the epilogue of the node that makes `x` (or of the node into which that one is fused)."""
        producer = self.producer(x)
        return self.place(self.relu(x), fused_into=producer.placement.fused_into or producer.name)

    def classifier(self, x: str, classes: int) -> str:
        """Global pooling and a fully connected layer."""
        n, c = self.shape(x)[:2]
        return self.gemm(self.reshape(self.global_average(x), n, c), classes)


def shuffled_units(count: int) -> Graph:
    """Units that convolve half of their channels, and interleave them with the other half (ShuffleNet v2)."""
    build = Builder()
    x = build.conv(build.input(1, 8, 8, 8), 32)
    for _ in range(count):
        left, right = build.split(x, 1, 16, 16)
        joined = build.concat(1, left, build.relu(build.conv(build.conv(right, 16, 3, pad=1, groups=16), 16)))
        turned = build.transpose(build.reshape(joined, 1, 2, 16, 8, 8), 0, 2, 1, 3, 4)
        x = build.reshape(turned, 1, 32, 8, 8)
    return build.graph(build.conv(x, 8))


def inverted_residuals(blocks: int = 2, size: int = 14) -> Graph:
    """1x1 -> depthwise -> 1x1 blocks with a residual add, as in MobileNetV2; a classifier at the end."""
    net = ConvNet("inverted")
    x = net.fused_relu(net.layer(net.input(1, 3, 2 * size, 2 * size), 32, 3, 2))
    for _ in range(blocks):
        wide = net.fused_relu(net.layer(x, 192))
        y = net.layer(net.fused_relu(net.wise(wide)), 32)
        x = net.add(x, y)
    return net.graph(net.classifier(x, 100))


def heavy_chain(size: int = 28) -> Graph:
    """Convolutions that are large enough to be split between both devices, with a residual add."""
    net = ConvNet("heavy")
    x = net.fused_relu(net.layer(net.input(1, 128, size, size), 256, 3))
    y = net.fused_relu(net.layer(x, 256, 3))
    x = net.add(x, net.layer(y, 256, 3))
    return net.graph(net.layer(x, 512, 3, 2))


def dense_block(layers: int = 4, size: int = 14) -> Graph:
    """Layers that read the outputs of all previous ones, as in DenseNet."""
    net = ConvNet("dense")
    made = [net.layer(net.input(1, 16, size, size), 64)]
    for _ in range(layers):
        joined = net.concat(1, *made) if len(made) > 1 else made[0]
        made.append(net.layer(net.fused_relu(net.layer(joined, 128)), 32, 3))
    return net.graph(net.layer(net.concat(1, *made), 64))


def fire_modules(size: int = 28) -> Graph:
    """Twice two branches of different cost between a fork and a join."""
    net = ConvNet("fire")
    x = net.input(1, 64, size, size)
    for _ in range(2):
        squeezed = net.fused_relu(net.layer(x, 32))
        left = net.fused_relu(net.layer(squeezed, 64))
        right = net.fused_relu(net.layer(squeezed, 64, 3))
        x = net.add(left, right)
    return net.graph(x)


def two_resolutions(size: int = 28, channels: int = 32, depth: int = 2, modules: int = 1) -> Graph:
    """Residual blocks at two resolutions side by side, the coarse ones taking in the fine ones' result (HRNet)."""
    net = ConvNet("resolutions")
    fine = net.input(1, channels, size, size)
    coarse = net.fused_relu(net.layer(fine, 2 * channels, 3, 2))
    for _ in range(modules):
        for _ in range(depth):
            fine = _basic_block(net, fine)
        for _ in range(depth):
            coarse = _basic_block(net, coarse)
        coarse = net.add(coarse, net.layer(fine, 2 * channels, 3, 2))
    return net.graph(net.layer(coarse, 64))


def _basic_block(net: ConvNet, x: str) -> str:
    channels = net.shape(x)[1]
    y = net.fused_relu(net.layer(x, channels, 3))
    return net.fused_relu(net.add(net.layer(y, channels, 3), x))


def random_net(seed: int) -> Graph:
    """A random chain with skips, strides, pools, depthwise layers and forks."""
    rng = random.Random(seed)
    net = ConvNet(f"random{seed}")
    x = net.input(rng.choice((1, 1, 2)), 16, rng.choice((14, 17, 28)), 14)
    for _ in range(rng.randint(4, 9)):
        kind = rng.choice(("pointwise", "conv", "depthwise", "residual", "pool", "fork"))
        channels = rng.choice((16, 64, 160))
        if kind == "pointwise":
            activate = net.fused_relu if rng.random() < 0.8 else net.relu
            x = activate(net.layer(x, channels))
        elif kind == "conv":
            x = net.layer(x, channels, rng.choice((2, 3, 5)), rng.choice((1, 1, 2)))
        elif kind == "depthwise":
            x = net.fused_relu(net.wise(x, rng.choice((1, 2))))
        elif kind == "pool" and min(net.shape(x)[2:]) >= 4:
            x = net.max_pool(x, 2, 2)
        elif kind == "fork":
            x = net.add(net.fused_relu(net.layer(x, channels)), net.layer(x, channels, 3))
        else:
            x = net.add(x, net.layer(net.fused_relu(net.wise(x)), net.shape(x)[1]))
    return net.graph(x)
