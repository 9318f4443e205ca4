"""Arguments as careless callers write them: what is meant is taken, and what is not is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pimflow
from pimflow.errors import ArgumentError, ModelError, OptionError, PimflowError

LAYER = pimflow.MatmulProblem(1, 64, 64)
LONG = "x" * 5000


def conv(**changed: Any) -> pimflow.ConvProblem:
    return pimflow.ConvProblem(**{"batch": 1, "in_channels": 16, "out_channels": 16, "in_h": 8, "in_w": 8} | changed)


@pytest.mark.parametrize("flag", ["use_cache", "check"])
@pytest.mark.parametrize("value", ["no", 1, [True], np.arange(3)])
def test_a_flag_is_true_or_false(flag: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"'{flag}' is .*; it must be true or false"):
        pimflow.inspect("zoo:toy", **{flag: value})


@pytest.mark.parametrize("function", [pimflow.compile, pimflow.inspect, pimflow.train, pimflow.front])
def test_an_unknown_policy_is_refused_by_all_that_take_one(function: Callable[..., Any]) -> None:
    with pytest.raises(OptionError, match=r"^unknown policy 'bogus'; choose one of gpu, .*auto$"):
        function("zoo:toy", policy="bogus")


def test_other_flags_are_true_or_false_too() -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu", use_cache=False)
    for call in (
        lambda: compiled.verify(arena="no"),  # type: ignore[arg-type]
        lambda: pimflow.simulate([], reopen_rows="no"),  # type: ignore[arg-type]
        lambda: pimflow.calibrate([], check="no"),  # type: ignore[arg-type]
        lambda: pimflow.Debug(verify_each="no"),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match="it must be true or false"):
            call()


def test_arguments_may_be_numpys() -> None:
    options: dict[str, Any] = {"use_cache": np.False_, "stages": np.array([2, 4]), "grid": np.int32(20)}
    compiled = pimflow.compile("zoo:toy", policy="pimflow", seed=np.array(3), **options)  # type: ignore[arg-type]
    assert (compiled.options.use_cache, compiled.options.stages, compiled.options.seed) == (False, (2, 4), 3)
    study = {"models": ["zoo:toy"], "policies": ["gpu"], "grid": {"pim.banks": np.array([8, 16])}}
    assert [row["pim.banks"] for row in pimflow.sweep(study, jobs=1)] == [8, 16]


def test_a_layer_may_have_lists_and_numpys_numbers() -> None:
    given = conv(in_channels=np.int64(16), kernel=[3, 3], pads=np.ones(4, int))
    plain = conv(kernel=(3, 3), pads=(1, 1, 1, 1))
    assert pimflow.layer(given) == pimflow.layer(plain)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: conv(kernel=3), "'work.kernel' is 3; it must be a list"),
        (lambda: conv(kernel=(3, 3), pads=(1, 1)), "'work.pads' is .*; it must be a list of 4"),
        (lambda: conv(kernel=(3, 3), in_h="8"), "'work.in_h' is '8'; it must be a whole number"),
        (lambda: pimflow.MatmulProblem(1, 64, None), "'work.n' is None; it must be a whole number"),  # type: ignore[arg-type]
        (lambda: pimflow.MatmulProblem(True, 64, 64), "'work.m' is True; it must be a whole number"),
    ],
)
def test_a_layer_of_wrong_types_is_refused(layer: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pimflow.layer(layer())


@pytest.mark.parametrize("knob", ["timing", "gwrite_latency", "buffers", "buffers_per_channel", "gpu_operand"])
@pytest.mark.parametrize("value", [object(), 1.5, ["strict"]])
def test_a_knob_of_another_type_is_refused(knob: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"'{knob}' is "):
        pimflow.override("pimflow", **{knob: value})


def test_keys_that_are_not_text_are_refused() -> None:
    with pytest.raises(OptionError, match="'fixed' has the key 1; keys must be text"):
        pimflow.inspect("zoo:toy", fixed={1: 2})  # type: ignore[dict-item]
    with pytest.raises(OptionError, match="the whole has the key None; keys must be text"):
        pimflow.sweep({None: 1})  # type: ignore[dict-item]


def test_stages_may_not_be_empty() -> None:
    with pytest.raises(OptionError, match="'stages' is empty; give one number of stages or more"):
        pimflow.front("zoo:toy", stages=[], use_cache=False)


@pytest.mark.parametrize(
    "call", [pimflow.compile, pimflow.inspect, pimflow.load, lambda text: pimflow.opt(text, "cleanup")]
)
def test_a_text_too_long_for_a_path_is_refused(call: Callable[[str], Any]) -> None:
    with pytest.raises(ModelError) as caught:
        call(LONG)
    assert "is too long for a path" in str(caught.value) or call is pimflow.load


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(name: str) -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu", use_cache=False)
    calls: list[Callable[[str], Any]] = [compiled.save, pimflow.HtmlReport("", "").save]
    study = {"models": ["zoo:toy"], "policies": ["gpu"]}
    calls += [lambda folder: pimflow.sweep(study, folder, jobs=1), pimflow.load]
    for call in calls:
        with pytest.raises(OptionError, match="which no file can be called"):
            call(name)
    with pytest.raises(PimflowError, match="File name too long"):
        pimflow.HtmlReport("", "").save(LONG)


def test_paths_are_whatever_names_a_file(tmp_path: Any) -> None:
    class Named:
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path / "toy.onnx")

    (tmp_path / "toy.onnx").write_bytes(pimflow.zoo_model("toy").SerializeToString())
    assert len(pimflow.inspect(Named())) == 9  # type: ignore[arg-type]
    assert pimflow.cache_info(str(tmp_path)).folder == str(tmp_path)
    assert pimflow.cache_clear(str(tmp_path)) == 0


def test_what_is_kept_is_a_verification(tmp_path: Any) -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu", use_cache=False)
    loaded = pimflow.load(compiled.save(tmp_path / "out"))
    with pytest.raises(ArgumentError, match="'found' is a bool; give what `verify` returns"):
        loaded.keep(tmp_path / "out", True)  # type: ignore[arg-type]
