"""The quickstarts do what they say: their commands and programs run, in order, on one node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.tidy.sources import ROOT

QUICKSTARTS = ROOT / "docs" / "quickstart"
ADDRESS = "localhost:9092"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEADLINE_S = 120.0
#: What runs a cluster or installs: the test has both already.
LEFT_OUT = ("pip install", "moldau dev")


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of a quickstart."""
    return BLOCK.findall((QUICKSTARTS / name).read_text(encoding="utf-8"))


def environment(node: Cluster, home: Path) -> dict[str, str]:
    """Where `moldau` is the one under test, and the node is the default."""
    command = home / "moldau"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau.cli.main "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{home}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MOLDAU_BOOTSTRAP_SERVER": node.bootstrap_server,
    }


def run(node: Cluster, home: Path, command: list[str]) -> str:
    """A command to its end, which must be good; what it wrote."""
    done = subprocess.run(
        command,
        cwd=home,
        env=environment(node, home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_cluster_on_your_machine(node: Cluster, tmp_path: Path):
    said = ""
    for language, text in blocks("local.md"):
        if language == "python":
            code = text.replace(ADDRESS, node.bootstrap_server)
            said += run(node, tmp_path, [sys.executable, "-c", code])
            continue
        lines = [line for line in text.splitlines() if not line.startswith(LEFT_OUT)]
        said += run(node, tmp_path, ["bash", "-euo", "pipefail", "-c", "\n".join(lines)])
    assert said.count("1545 on time") >= 2, "read with and without a group"
    assert "board" in said
    assert "b'" in said, "read by the program"


@pytest.mark.system
@pytest.mark.timeout(300)
def test_kafka_in_your_tests(node: Cluster, tmp_path: Path):
    first, second = (text for language, text in blocks("tests.md") if language == "python")
    (tmp_path / "test_it.py").write_text(first)
    arguments = ["-q", "-p", "no:cacheprovider"]
    said = run(node, tmp_path, [sys.executable, "-m", "pytest", *arguments, "test_it.py"])
    assert "1 passed" in said
    assert run(node, tmp_path, [sys.executable, "-c", second]).count(",") == 2
