"""Another package adds a kind of unit, a machine, a policy and a pass, by its entry points alone."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pimflow
from pimflow import plugins
from pimflow.errors import PluginError
from pimflow.plugins import PluginWarning, entries
from support.cli import Capture, assert_one_line, run
from support.plugins import Entries, install, install_example, python


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("site"))


@pytest.fixture
def installed(example: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(example))
    yield example
    for name in [name for name in sys.modules if name.startswith("pimflow_vector")]:
        del sys.modules[name]


def test_it_is_listed_with_pimflows_own(installed: Path, capsys: Capture) -> None:
    assert run("targets", "list") == 0
    assert "vector-machine" in capsys.readouterr().out
    assert pimflow.target_names()[-1] == "vector-machine"
    assert pimflow.list_targets()[-1]["vector"] == "64 cores at 2000 MHz, 900 GB/s"
    assert list(pimflow.policies())[-1] == "halves"
    assert pimflow.list_passes()[-1]["name"] == "forget-tags"
    assert run("targets", "show", "vector-machine") == 0
    assert "[vector.energy]" in capsys.readouterr().out


def test_a_model_is_supported_end_to_end(installed: Path, tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", target="vector-machine", policy="halves", use_cache=False)
    assert {row.mode for row in compiled.report.nodes} & {"vector"}
    assert compiled.verify(pim="values").passed
    again = pimflow.load(compiled.save(tmp_path / "out"))
    assert again.plan == compiled.plan
    assert "halves" in [row.policy for row in pimflow.compare("zoo:toy", use_cache=False).policies]
    changed = pimflow.override("vector-machine", {"vector.cores": 1})
    slower = pimflow.compile("zoo:toy", target=changed, policy="halves", use_cache=False)
    assert slower.report.result.time_us > compiled.report.result.time_us


def test_its_pass_runs_where_it_is_named(installed: Path) -> None:
    assert [record.name for record in pimflow.opt("zoo:toy", "cleanup,forget-tags").records][-1] == "forget-tags"


def test_its_names_are_unknown_if_it_is_not_installed(capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "--policy", "halves") == 2
    assert_one_line(capsys, "unknown policy 'halves'")
    assert "vector-machine" not in pimflow.target_names()


def test_a_sweep_gives_the_same_points_in_other_processes(installed: Path) -> None:
    """Including processes that an earlier sweep left, which may have started before a package was installed."""
    sys.path.remove(str(installed))
    assert pimflow.sweep({"models": ["zoo:toy"], "policies": ["gpu"]}, jobs=2)[0]["status"] == "ok"
    sys.path.insert(0, str(installed))
    study = {
        "models": ["zoo:toy"],
        "targets": ["vector-machine"],
        "policies": ["halves"],
        "grid": {"vector.cores": [1, 64]},
    }
    alone = pimflow.sweep(study, jobs=1)
    assert [row["status"] for row in alone] == ["ok", "ok"]
    assert list(pimflow.sweep(study, jobs=2)) == list(alone)


USED = """
import sys
from pimflow.cli import main
code = main(sys.argv[1:] or {arguments!r})
print(code, sorted(name for name in sys.modules if name.split(".")[0] == "pimflow_vector"))
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["compile", "zoo:toy", "--no-cache", "-o", "out", "-q"], []),
        (["compile", "zoo:toy", "--no-cache", "-o", "out", "-q", "--policy", "halves"], ["", ".policies"]),
    ],
    ids=["not-asked-for", "policy"],
)
def test_only_requested_plugins_are_imported(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], imported: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, modules = python(example, USED.format(arguments=arguments)).splitlines()[-1].split(" ", 1)
    assert code == "0"
    assert modules == str([f"pimflow_vector{name}" for name in imported])


BROKEN: Entries = {
    "pimflow.targets": {"gone": "no_such_module", "empty": "plain_module", "pimflow": "plain_module"},
    "pimflow.policies": {"raises": "raising_module:POLICY", "number": "plain_module:NUMBER"},
    "pimflow.backends": {"exits": "exiting_module:KIND", "number": "plain_module:NUMBER"},
    "pimflow.passes": {
        "numbers": "plain_module:NUMBER",
        "malformed": "no module at all",
        "tabled": "passes_module:Tabled",
        "unresolved": "passes_module:Unresolved",
    },
}


PASSES = """
from __future__ import annotations
from dataclasses import dataclass
from pimflow.passes import Pass

@dataclass(frozen=True)
class Tabled(Pass):
    name = "tabled"
    sizes: dict = None

@dataclass(frozen=True)
class Unresolved(Pass):
    name = "unresolved"
    size: Nowhere = None
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    install(site, "bad-plugin", BROKEN, version="0.3")
    (site / "plain_module.py").write_text("NUMBER = 3\n")
    (site / "passes_module.py").write_text(PASSES)
    (site / "raising_module.py").write_text("raise RuntimeError('not today')\n")
    (site / "exiting_module.py").write_text("raise SystemExit(7)\n")
    (site / "rubbish-1.0.dist-info").mkdir()
    (site / "rubbish-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff[pimflow.targets\n= =\n")
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "gone"], "target 'gone' of bad-plugin 0.3 cannot be loaded: ModuleNotFoundError"),
        (["--target", "empty"], "target 'empty' of bad-plugin 0.3 has no empty.toml in plain_module"),
        (["--policy", "raises"], "policy 'raises' of bad-plugin 0.3 cannot be loaded: RuntimeError: not today; repair"),
        (["--policy", "number"], "policy 'number' of bad-plugin 0.3 is an int, not a Policy"),
    ],
)
def test_loading_errors_are_one_line_where_the_plugin_is_named(
    broken: Path, words: list[str], said: str, capsys: Capture
) -> None:
    assert run("compile", "zoo:toy", *words) == 2
    assert_one_line(capsys, said)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("exits", "backend 'exits' of bad-plugin 0.3 cannot be loaded: SystemExit: 7"),
        ("number", "is an int, not a Kind"),
    ],
)
def test_loading_errors_of_a_targets_backend_are_one_line(
    broken: Path, kind: str, said: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "mine.toml").write_text(f'base = "pimflow"\n[extra]\nkind = "{kind}"\n')
    assert run("compile", "zoo:toy", "--target", str(tmp_path / "mine.toml")) == 2
    assert_one_line(capsys, said)


@pytest.mark.parametrize("name", ["numbers", "malformed", "tabled", "unresolved"])
def test_loading_errors_of_a_pass_are_one_line(broken: Path, name: str, capsys: Capture) -> None:
    assert run("opt", "zoo:toy", "-p", name) == 2
    assert_one_line(capsys, f"pass {name!r} of bad-plugin 0.3")


def test_broken_plugins_affect_nothing_else(broken: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "--no-cache", "-q", "-o", str(tmp_path / "out")) == 0
    assert capsys.readouterr().err == ""
    assert pimflow.load_target("pimflow").devices == ("gpu", "pim")


@pytest.mark.parametrize(
    ("what", "listed"),
    [
        ("targets", lambda: [row["name"] for row in pimflow.list_targets()]),
        ("policies", lambda: list(pimflow.policies())),
        ("passes", lambda: [row["name"] for row in pimflow.list_passes()]),
    ],
)
def test_lists_omit_broken_plugins_with_a_warning(broken: Path, what: str, listed: Callable[[], list[str]]) -> None:
    bad = {name for name in BROKEN[f"pimflow.{what}"] if name != "pimflow"}
    with pytest.warns(PluginWarning) as caught:
        names = listed()
    assert len(names) > 5
    assert not bad & set(names)
    texts = [str(warning.message) for warning in caught]
    assert all(sum(f"{name!r} of bad-plugin 0.3" in text for text in texts) == 1 for name in bad)


def test_one_malformed_entry_point_hides_no_other(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backport `importlib_metadata` replaces Python's own, and refuses all entry points of such a package."""

    def refused(distribution: importlib.metadata.Distribution) -> None:
        raise ValueError("invalid entry point")

    monkeypatch.setattr(importlib.metadata.Distribution, "entry_points", property(refused))
    found = {(plugin.group, plugin.name) for plugin in entries.installed(list(BROKEN))}
    assert found == {(group, name) for group, named in BROKEN.items() for name in named}


def test_a_plugin_with_a_name_of_pimflows_is_ignored_with_a_warning(broken: Path, capsys: Capture) -> None:
    assert run("targets", "list") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "'pimflow'" in line]
    said = "target 'pimflow' of bad-plugin 0.3 is ignored: pimflow has one of this name"
    assert lines == [f"pimflow: warning: {said}"]
    assert pimflow.load_target("pimflow").devices == ("gpu", "pim")


def test_a_name_that_two_packages_offer_is_an_error_that_names_both(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    install(tmp_path, "other", {"pimflow.policies": {"Halves": "other:POLICY"}}, version="2.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"policy 'halves' is offered by other 2\.1 and pimflow-vector 1\.0"):
        pimflow.compile("zoo:toy", policy="halves")
    assert "halves" in dict.fromkeys(plugins.names(plugins.POLICIES))


def test_of_two_versions_of_a_package_the_first_on_the_path_counts(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "pimflow-vector", {"pimflow.policies": {"halves": "older:POLICY"}}, version="0.1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    plugin = plugins.find(plugins.POLICIES, "halves")
    assert plugin is not None
    assert plugin.package == "pimflow-vector 1.0"


def test_a_package_without_metadata_is_identified_by_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    install(tmp_path, "nameless", {"pimflow.policies": {"unnamed": "no_such_module:X"}}, metadata=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("compile", "zoo:toy", "--policy", "unnamed") == 2
    assert_one_line(capsys, "no_such_module:X cannot be loaded")


def test_a_target_with_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "misnamed", {"pimflow.targets": {"one": "misnamed_machines"}})
    (tmp_path / "misnamed_machines.py").touch()
    (tmp_path / "one.toml").write_text('base = "pimflow"\nname = "two"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"target 'one' of misnamed 1\.0 calls itself 'two'"):
        pimflow.load_target("one")
    (tmp_path / "one.toml").write_text('base = "one"\n')
    with pytest.raises(PluginError, match="files start from each other"):
        pimflow.load_target("one")
    (tmp_path / "one.toml").write_text('base = "pimflow"\n')
    assert pimflow.load_target("ONE").values == pimflow.load_target("pimflow").values
    (tmp_path / "misnamed_machines.py").unlink()


def test_a_target_may_be_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "object", {"pimflow.targets": {"more-banks": "object_machines:MACHINE"}})
    source = "from dataclasses import replace\nimport pimflow\n"
    source += (
        'MACHINE = replace(pimflow.override("pimflow", {"pim.banks": 32}), name="more-banks", description="32 banks")\n'
    )
    (tmp_path / "object_machines.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert pimflow.load_target("more-banks").pim.banks == 32
    assert "banks = 32" in pimflow.target_text("more-banks")
