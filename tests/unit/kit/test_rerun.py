"""A run of pytest says what it should: red for faults, green and listed for what is only
unsteady.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tests.kit import unsteady

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.real

INI = """
[pytest]
addopts = -ra --strict-markers
markers =
    gate: .
    real: .
"""
HEAD = """
import os
from pathlib import Path
import pytest
from tests.kit import Verdict, rerun

HERE = Path(__file__).parent
rerun.RUNS = {runs}

def count(name):
    path = HERE / (str(name) + ".count")
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())
"""
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PARALLEL = ("-p", "xdist.plugin", "-n")
REAL = "pytestmark = pytest.mark.real\n"
GATE = "pytestmark = pytest.mark.gate\n"
FIRST_TIME = """
def test_first_time():
    print("seed 4711")
    assert count("first") > 1, "the first time"
"""


def run(
    directory: Path, text: str, *options: str, runs: int = 1
) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text(INI)
    (directory / "test_made_up.py").write_text(HEAD.replace("{runs}", str(runs)) + text)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.kit.rerun"),
            *("-p", "no:cacheprovider", *options),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", **ALONE},
        capture_output=True,
        text=True,
        check=False,
    )


def count(directory: Path, name: str) -> int:
    return len((directory / f"{name}.count").read_text())


def closing(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("workers", [(), (*PARALLEL, "2")])
def test_what_fails_once_is_unsteady_and_green(tmp_path, workers):
    passing = "def test_other():\n    pass\n"
    ended = run(tmp_path, REAL + FIRST_TIME + passing, "--run-again", *workers, runs=5)
    assert ended.returncode == 0, ended.stdout
    assert "1 passed, 1 unsteady" in closing(ended)
    assert "UNSTEADY, passed 5 of 5 alone: test_made_up.py::test_first_time" in ended.stdout
    assert "AssertionError: the first time" in ended.stdout
    assert "Captured stdout call" in ended.stdout
    assert count(tmp_path, "first") == 6
    text = ended.stdout.partition("[[unsteady]]")[1:]
    row = tomllib.loads("".join(text).partition("\n===")[0].partition("\nRED")[0])
    assert row == {
        "unsteady": [
            {
                "test": "test_made_up.py::test_first_time",
                "date": date.today(),
                "seed": "4711",
                "cause": "",
            }
        ]
    }


def test_a_person_sees_the_failure_at_once(tmp_path):
    ended = run(tmp_path, REAL + FIRST_TIME)
    assert ended.returncode == 1
    assert "1 failed" in closing(ended)
    assert count(tmp_path, "first") == 1


def test_what_fails_always_is_red(tmp_path):
    ended = run(
        tmp_path, REAL + "def test_it():\n    assert count('it') < 0", "--run-again", runs=2
    )
    assert ended.returncode == 1
    assert "FAILED AGAIN, 2 of 2: test_made_up.py::test_it" in ended.stdout
    assert "1 failed" in closing(ended)
    assert count(tmp_path, "it") == 3


def test_what_fails_every_second_time_is_red(tmp_path):
    ended = run(
        tmp_path, REAL + "def test_it():\n    assert count('it') % 2 == 0", "--run-again", runs=5
    )
    assert ended.returncode == 1
    assert "FAILED AGAIN, 2 of 5: test_made_up.py::test_it" in ended.stdout
    assert "1 failed" in closing(ended)


@pytest.mark.parametrize(
    "error",
    [
        "raise Verdict('lost: record 7')",
        "raise ExceptionGroup('all', [ValueError(), Verdict('lost: record 7')])",
        "try:\n        raise Verdict('torn')\n    finally:\n        assert not HERE",
    ],
)
def test_a_verdict_is_final(tmp_path, error):
    text = f"def test_it():\n    count('it')\n    {error}\n"
    ended = run(tmp_path, REAL + text, "--run-again")
    assert ended.returncode == 1
    assert "VERDICT, final: test_made_up.py::test_it" in ended.stdout
    assert count(tmp_path, "it") == 1


def test_a_failure_of_the_gate_is_final(tmp_path):
    ended = run(tmp_path, FIRST_TIME, "--run-again")
    assert ended.returncode == 1
    assert count(tmp_path, "first") == 1


def test_one_fault_beside_an_unsteady_test_is_red(tmp_path):
    text = "def test_fault():\n    assert False\n" + "@pytest.mark.real" + FIRST_TIME
    ended = run(tmp_path, text, "--run-again")
    assert ended.returncode == 1
    assert "1 failed, 1 unsteady" in closing(ended)


def test_more_than_five_unsteady_are_red(tmp_path):
    text = (
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(number):\n    assert count(number) > 1\n"
    )
    ended = run(tmp_path, REAL + text, "--run-again")
    assert ended.returncode == 1
    assert "RED: 6 tests are unsteady: more than 5" in ended.stdout
    assert "6 unsteady" in closing(ended)


@pytest.mark.parametrize(("cause", "status"), [("", 1), ("a lost wake-up", 0)])
def test_what_is_listed_must_have_a_cause(tmp_path, cause, status):
    (tmp_path / "tests").mkdir()
    (tmp_path / unsteady.FILE).write_text(
        '[[unsteady]]\ntest = "test_made_up.py::test_first_time"\n'
        f'date = 2026-01-02\ncause = "{cause}"\n'
    )
    ended = run(tmp_path, REAL + FIRST_TIME, "--run-again")
    assert ended.returncode == status
    assert ("is unsteady again, and tests/unsteady.toml names no cause" in ended.stdout) == (
        cause == ""
    )


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_of_a_fixture_counts(tmp_path, where):
    steps = ["assert count('it') > 1", "yield"][:: 1 if where == "before" else -1]
    fixture = "@pytest.fixture\ndef made():\n    {}\n    {}\n".format(*steps)
    ended = run(tmp_path, REAL + fixture + "def test_it(made):\n    pass\n", "--run-again")
    assert ended.returncode == 0, ended.stdout
    assert "UNSTEADY" in ended.stdout
    assert "1 unsteady" in closing(ended)
    assert "error" not in closing(ended)


@pytest.mark.parametrize(
    ("head", "status", "said", "run_count"),
    [(REAL, 0, "1 unsteady", 6), (GATE, 1, "1 failed", 1)],
    ids=["real", "gate"],
)
def test_a_worker_that_crashes_failed_its_test(tmp_path, head, status, said, run_count):
    text = head + "def test_it():\n    if count('it') == 1:\n        os._exit(3)\n"
    ended = run(tmp_path, text, "--run-again", *PARALLEL, "1")
    assert ended.returncode == status, ended.stdout
    assert said in closing(ended)
    assert count(tmp_path, "it") == run_count


def test_a_skip_is_no_pass(tmp_path):
    text = (
        "def test_it():\n    if count('it') > 1:\n        pytest.skip('gone')\n    assert False\n"
    )
    ended = run(tmp_path, REAL + text, "--run-again")
    assert ended.returncode == 1
    assert "FAILED AGAIN, 1 of 1" in ended.stdout


def test_so_many_failures_are_not_run_again(tmp_path):
    text = (
        "@pytest.mark.parametrize('number', range(21))\n"
        "def test_it(number):\n    assert count(number) > 1\n"
    )
    ended = run(tmp_path, REAL + text, "--run-again")
    assert ended.returncode == 1
    assert "RED: 21 tests failed: too many to run each of them again" in ended.stdout
    assert count(tmp_path, "0") == 1
