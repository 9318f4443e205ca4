"""Training steps against PyTorch's autograd, on its own exports, if it is installed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pimflow.frontend import load_model
from pimflow.ir import Array
from pimflow.passes.differentiate import Differentiate, Loss, training_step
from support.values import relative_error, run_in_ort

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn if torch else None


def made_of(forward: Callable[..., Any], **parts: Any) -> Any:
    """A module of parts, with a function of them and of the inputs."""

    class Module(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *inputs: Any) -> Any:
            return forward(self, *inputs)

    return Module()


def convolutions() -> tuple[Any, tuple[Any, ...]]:
    """Batch norms, depthwise and dilated kernels, squeeze-and-excitation, pools, a residual."""

    def forward(net: Any, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(net.norm(net.first(x))), 3, 2, 1)
        y = nn.functional.hardswish(net.depthwise(x))
        y = y * torch.sigmoid(net.squeeze(y.mean((2, 3), keepdim=True)))
        y = nn.functional.avg_pool2d(x + net.dilated(y), 2, count_include_pad=False)
        return net.last(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1))

    return made_of(
        forward,
        first=nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        norm=nn.BatchNorm2d(8),
        depthwise=nn.Conv2d(8, 8, 5, padding=2, groups=8),
        squeeze=nn.Conv2d(8, 8, 1),
        dilated=nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2),
        last=nn.Linear(8, 5),
    ), (torch.randn(2, 3, 18, 22),)


def transformer() -> tuple[Any, tuple[Any, ...]]:
    """Embeddings, attention, norms, Gelu."""

    def forward(net: Any, words: Any) -> Any:
        x = net.words(words) + net.places(torch.arange(words.shape[1]))
        q, k, v = (part.reshape(2, 6, 2, 8).transpose(1, 2) for part in net.projected(net.norm(x)).chunk(3, -1))
        shares = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        x = x + net.out((shares @ v).transpose(1, 2).reshape(2, 6, 16))
        return net.down(nn.functional.gelu(net.up(x)))

    parts = {"words": nn.Embedding(11, 16), "places": nn.Embedding(6, 16), "norm": nn.LayerNorm(16)}
    parts |= {"projected": nn.Linear(16, 48), "out": nn.Linear(16, 16), "up": nn.Linear(16, 24)}
    return made_of(forward, **parts, down=nn.Linear(24, 7)), (torch.randint(0, 11, (2, 6)),)


def up_and_down() -> tuple[Any, tuple[Any, ...]]:
    """Reflected padding, resizing, a transposed convolution, group norms, concatenation."""

    def forward(net: Any, x: Any) -> Any:
        y = nn.functional.elu(net.norm(net.down(nn.functional.pad(x, (1, 2, 1, 1), mode="reflect"))))
        up = nn.functional.interpolate(y, size=(9, 11), mode="bilinear", align_corners=False)
        wide = nn.functional.interpolate(net.up(y), size=(12, 15), mode="bicubic", align_corners=True)
        near = nn.functional.interpolate(y, size=(8, 10), mode="nearest")
        return torch.cat([up.flatten(1), wide.flatten(1), near.flatten(1)], 1)

    parts = {"down": nn.Conv2d(3, 4, 3, 2), "norm": nn.GroupNorm(2, 4)}
    return made_of(forward, **parts, up=nn.ConvTranspose2d(4, 2, 3, 2, 1, 1)), (torch.randn(2, 3, 8, 9),)


def recurrences() -> tuple[Any, tuple[Any, ...]]:
    """Recurrent layers in both directions, one after the other."""

    def forward(net: Any, x: Any) -> Any:
        x, _ = net.lstm(x)
        x, _ = net.gru(x)
        return net.rnn(x)[0]

    parts = {"lstm": nn.LSTM(3, 4, bidirectional=True), "gru": nn.GRU(8, 5), "rnn": nn.RNN(5, 3, nonlinearity="relu")}
    return made_of(forward, **parts), (torch.randn(5, 2, 3),)


def messages() -> tuple[Any, tuple[Any, ...]]:
    """Features gathered along edges and added up at their destinations."""
    sources, ends = torch.tensor([0, 1, 2, 2, 3, 0, 4]), torch.tensor([1, 2, 0, 1, 1, 4, 4])

    def forward(net: Any, x: Any) -> Any:
        x = net.first(x)
        sums = torch.zeros(5, 6).scatter_add(0, ends[:, None].expand(-1, 6), x[sources] * net.weights)
        return net.last(torch.relu(sums + x))

    parts = {"first": nn.Linear(4, 6), "last": nn.Linear(6, 3), "weights": nn.Parameter(torch.randn(7, 1))}
    return made_of(forward, **parts), (torch.randn(5, 4),)


MODULES = {made.__name__: made for made in (convolutions, transformer, up_and_down, recurrences, messages)}
LOSSES: dict[str, Loss] = {"convolutions": "cross-entropy", "transformer": "mean-squared"}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_all_parameters(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    loss: Loss = LOSSES.get(name, "sum")
    file = io.BytesIO()
    torch.onnx.export(module.eval(), inputs, file, dynamo=False, opset_version=17, do_constant_folding=False)
    graph = load_model(file.getvalue())
    parameters = dict(module.named_parameters())
    bound, leaves = _as_exported(graph.constants, parameters)
    step = training_step(graph, Differentiate(loss, wrt=tuple(bound)))
    output = module.train()(*inputs)
    given, expected = _loss(loss, output)
    expected.backward()
    target = next(item for item in step.graph.inputs if item not in graph.inputs)
    values: dict[str, Array] = dict(zip(graph.inputs, (item.numpy() for item in inputs), strict=True))
    made = run_in_ort(step.graph, values | {target: given.numpy()})
    assert float(made[step.loss]) == pytest.approx(float(expected), rel=1e-4)
    assert set(leaves) == set(parameters)
    for constant, parameter in bound.items():
        gradient = parameters[parameter].grad.numpy()
        assert relative_error(made[step.gradients[constant]], gradient) < 2e-4, parameter


def _loss(loss: Loss, output: Any) -> tuple[Any, Any]:
    """The inputs of the step for the output, and the loss."""
    if loss == "cross-entropy":
        target = torch.tensor([3, 1])
        return target, nn.functional.cross_entropy(output, target)
    given = torch.randn(output.shape)
    return given, (output * given).sum() if loss == "sum" else nn.functional.mse_loss(output, given)


def _as_exported(constants: Any, parameters: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Constants and the parameters that they stand for, matched by the exporter's names."""
    bound = {name: name for name in parameters if name in constants}
    for name, value in parameters.items():
        if name in bound:
            continue
        same = [other for other, array in constants.items() if array.shape == tuple(value.shape)]
        match = [other for other in same if np.array_equal(constants[other], value.detach().numpy())]
        bound |= dict.fromkeys(match[:1], name)
    return bound, list(bound.values())
