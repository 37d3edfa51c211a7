"""What needs a package that is absent is skipped, and the run's summary names the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.absent import OPTIONAL, absent_in
from tests.tidy.sources import ROOT

CONFTEST = """
from tests.kit import absent
absent.ABSENT = frozenset({"not_installed"})
"""
AT_THE_TOP = "import not_installed.inner\n\ndef test_never():\n    assert False\n"
WITHIN = """
import pytest

@pytest.fixture
def fixture():
    import not_installed

def by_a_product():
    try:
        import not_installed
    except ImportError as error:
        raise RuntimeError("install the extra") from error

def test_by_a_fixture(fixture):
    pass

def test_by_itself():
    import not_installed.inner

def test_by_the_product():
    by_a_product()

def test_of_another_package():
    import not_installed_either

def test_that_passes():
    assert True
"""


@pytest.mark.real
def test_only_what_needs_the_absent_package_is_skipped(tmp_path: Path):
    for name, text in (("conftest", CONFTEST), ("test_top", AT_THE_TOP), ("test_in", WITHIN)):
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsf", "-p", "tests.kit.absent", "-p", "no:moldau"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout
    reason = "not_installed is not installed: make setup-all"
    assert re.search(rf"SKIPPED \[1\] test_top\.py:1: {reason}", said), said
    assert len(re.findall(rf"SKIPPED \[1\] test_in\.py:\d+: {reason}", said)) == 3, said
    assert "1 failed, 1 passed, 4 skipped" in said
    assert "FAILED test_in.py::test_of_another_package" in said


def test_nothing_is_skipped_for_a_package_of_the_gate():
    error = ModuleNotFoundError("No module named 'orjson'", name="orjson")
    assert absent_in(error) is None
    assert not OPTIONAL & {"orjson", "pytest", "moldau", "aiokafka", "confluent_kafka"}
