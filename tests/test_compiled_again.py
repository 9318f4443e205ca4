"""Results of an earlier compilation are reused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import pytest

import pimflow
import pimflow_zoo
from pimflow.bundle.files import sha256_of
from pimflow.codegen import MatrixProblem
from pimflow.ir import Decision
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.search.pricing import Pricer
from pimflow.targets import load_target
from pimflow.targets.overrides import with_values


class Work:
    """The work of compilations that share one cache: mapping searches and priced candidates."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._searched: list[MatrixProblem] = []
        self._bounded = 0
        least = Pricer.least

        def counted(problem: MatrixProblem, profile: TimingProfile) -> list[Candidate]:
            self._searched.append(problem)
            return candidates(problem, profile)

        def also_counted(pricer: Pricer, decisions: tuple[Decision, ...]) -> float:
            self._bounded += 1
            return least(pricer, decisions)

        patch.setattr("pimflow.runtime.newton.autotune.choose.candidates", counted)
        patch.setattr(Pricer, "least", also_counted)

    def of(self, values: Mapping[str, object]) -> tuple[list[MatrixProblem], int]:
        """Compile the toy for the shipped machine with other values; return (problems whose mapping was searched for,
        number of candidates considered)."""
        self._searched, self._bounded = [], 0
        pimflow.compile("zoo:toy", target=with_values(load_target("pimflow"), values), check=False)
        return self._searched, self._bounded


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patch:
        yield Work(patch)


def test_new_descriptions_and_energies_need_no_new_prices(work: Work) -> None:
    searched, bounded = work.of({})
    assert searched
    assert bounded
    for values in ({}, {"gpu.basis": "other words"}, {"gpu.energy.mac_pj": 2.0}, {"pim.energy.strict.mac_pj": 7.0}):
        assert work.of(values) == ([], 0), values


@pytest.mark.parametrize("launch", [{"pim.launch_us": 2.0}, {"gpu.launch_cycles": 9000}], ids=["PIM", "GPU"])
def test_a_new_launch_time_needs_no_mapping_search(work: Work, launch: Mapping[str, object]) -> None:
    first, _ = work.of({})
    again, bounded = work.of(launch)
    assert bounded
    assert not set(again) & set(first)


def test_mappings_that_only_the_report_needs_are_cached(work: Work) -> None:
    """With a slow PIM, bounds rule everything out; the report still shows what it would take."""
    slow = {"pim.clock_mhz": 20}
    searched, _ = work.of(slow)
    assert searched
    assert work.of(slow) == ([], 0)


def test_a_file_is_hashed_once_and_the_manifest_has_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    for module in ("pimflow.compiled.writing", "pimflow.bundle.manifest"):
        monkeypatch.setattr(f"{module}.sha256_of", counted)
    pimflow_zoo.export("toy", tmp_path / "toy.onnx")
    compiled = pimflow.compile(tmp_path / "toy.onnx", policy="gpu", use_cache=False)
    compiled.save(tmp_path / "out")
    assert sorted(hashed) == sorted(set(hashed))
    assert "model.onnx" in hashed
    assert "toy.onnx" not in hashed, "the original was read before it was compiled"
    assert pimflow.load(tmp_path / "out").source.sha256 == compiled.source.sha256


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_known_output_is_replaced_without_reading_it(
    use_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    compiled = pimflow.compile("zoo:toy", policy="gpu", check=False, use_cache=use_cache)
    out = tmp_path / "out"
    compiled.save(out, progress=lambda line: time.sleep(0.02))  # lets the file system's clock advance
    before = (out / "plan.json").stat().st_ino
    read: list[int] = []

    def noted(path: Path) -> str:
        read.append(path.stat().st_ino)
        return sha256_of(path)

    for module in ("manifest", "stamps"):
        monkeypatch.setattr(f"pimflow.bundle.{module}.sha256_of", noted)
    compiled.save(out)
    assert (before in read) is not use_cache


ALL_OLD, ALL_YOUNG = -1, 1 << 62
"""Ages in ns from which on a file's next change shows in its stamp."""


@pytest.mark.parametrize(("use_cache", "settled_ns"), [(True, ALL_OLD), (False, ALL_OLD), (True, ALL_YOUNG)])
def test_a_model_that_an_earlier_run_read_is_not_hashed_again(
    use_cache: bool, settled_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its stamp could outlast a change."""
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("pimflow.bundle.stamps._SETTLED_NS", settled_ns)
    model = tmp_path / "toy.onnx"
    pimflow_zoo.export("toy", model)
    hashed: list[str] = []

    def noted(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr("pimflow.bundle.stamps.sha256_of", noted)

    def run(name: str) -> str:
        """Compiles like a process of its own, and returns the recorded digest."""
        monkeypatch.setattr("pimflow.bundle.stamps._digests", {})
        hashed.clear()
        pimflow.compile(model, policy="gpu", use_cache=use_cache).save(tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        return str(config["original_sha256"])

    first = run("first")
    assert hashed == ["toy.onnx"]
    assert run("second") == first
    assert hashed == ([] if use_cache and settled_ns == ALL_OLD else ["toy.onnx"])
    changed = onnx.load(model)
    changed.producer_name = "another"
    onnx.save(changed, model)
    assert run("third") == sha256_of(model) != first
    assert hashed == ["toy.onnx"]
