"""The pytest plugin as another project meets it: a pytest of its own, warnings are errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

THEIR_TESTS = """
import asyncio, sys
import pytest

def test_the_plugin_alone_loads_next_to_nothing():
    loaded = [name for name in sys.modules if name.startswith("moldau.")]
    assert loaded == ["moldau.testing", "moldau.testing.pytest_plugin"]

seen = []

@pytest.mark.parametrize("turn", [1, 2])
def test_a_topic_of_its_own(moldau_cluster, moldau_topic, turn):
    from moldau.client import Admin

    async def partitions():
        async with Admin(moldau_cluster.bootstrap_server) as admin:
            return (await admin.describe_topics([moldau_topic]))[moldau_topic].partitions

    assert len(asyncio.run(partitions())) == 1
    seen.append((moldau_topic, moldau_cluster.node().pid))

def test_one_cluster_for_all():
    (first, first_pid), (second, second_pid) = seen
    assert first != second
    assert first_pid == second_pid
"""


#: Whatever else is installed here is not what is looked at.
OTHER_PLUGINS = ("asyncio", "hypothesispytest", "timeout", "xdist", "cacheprovider")


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = [option for plugin in OTHER_PLUGINS for option in ("-p", f"no:{plugin}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *options, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_fixtures_in_another_project(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text(THEIR_TESTS)
    result = run_pytest(tmp_path, "test_theirs.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout


def test_fixtures_explain_themselves(tmp_path: Path):
    listed = run_pytest(tmp_path, "--fixtures").stdout
    assert "moldau_cluster [session scope]" in listed
    assert "moldau_topic" in listed
