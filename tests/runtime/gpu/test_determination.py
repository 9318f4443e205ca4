"""The parameters of a fit that its rows determine, against models whose rank is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pimflow.runtime.gpu.determination import determination
from pimflow.runtime.gpu.form import Form, Sample
from pimflow.runtime.gpu.kernel_time import KernelTime
from pimflow.runtime.gpu.work import GpuWork, StreamWork


@dataclass(frozen=True)
class Toy:
    """Parameters of a model whose times are sums of products of them."""

    a: float = 2.0
    b: float = 3.0
    c: float = 5.0


class ToyForm(Form[Any]):
    """The time is the expression in a sample's name, as in "a*b+c"."""

    def kernel_time(self, work: GpuWork, gpu: Any, channels: int) -> KernelTime:
        raise NotImplementedError

    def times_us(self, gpu: Any, samples: Sequence[Sample]) -> list[float]:
        return [float(eval(sample.name, {}, vars(gpu))) for sample in samples]

    def parameters(self, gpu: Any) -> Mapping[str, float]:
        return dict(vars(gpu))

    def with_parameters(self, gpu: Any, values: Mapping[str, float]) -> Any:
        return replace(gpu, **values)

    def fit(self, gpu: Any, samples: Sequence[Sample]) -> Any:
        return gpu


@pytest.mark.parametrize(
    ("kernels", "moved", "parameters", "rank", "undetermined"),
    [
        (["a", "b", "c"], (), 3, 3, ()),
        (["a+b", "a", "b*c"], (), 3, 3, ()),
        (["a*b", "c"], (), 3, 2, ("a", "b")),
        (["a*b", "a*b*a*b", "c"], (), 3, 2, ("a", "b")),  # as many rows as parameters, and still not enough
        (["a*b*c"] * 9, (), 3, 1, ("a", "b", "c")),
        (["a", "a"], (), 1, 1, ()),
        (["a"], ("c",), 2, 1, ("c",)),  # it is fitted, but no row depends on it
        (["max(a, b)", "c"], (), 2, 2, ()),
        (["7"], (), 0, 0, ()),
    ],
)
def test_the_rank_counts_and_not_the_rows(
    kernels: list[str], moved: tuple[str, ...], parameters: int, rank: int, undetermined: tuple[str, ...]
) -> None:
    samples = [Sample(StreamWork(1, 1), 1.0, name, "fp16") for name in kernels]
    found = determination(ToyForm(), Toy(), samples, moved)
    assert (found.rows, found.parameters, found.rank, found.undetermined) == (
        len(kernels),
        parameters,
        rank,
        undetermined,
    )
    assert bool(found.warning) == bool(undetermined)


def test_the_warning_is_a_line_with_the_names() -> None:
    samples = [Sample(StreamWork(1, 1), 1.0, "a*b", "fp16")]
    assert determination(ToyForm(), Toy(), samples, ()).warning == (
        "1 row determines 1 of the 2 parameters that were fitted; a, b could have other values: "
        "measure more kinds of kernels"
    )
