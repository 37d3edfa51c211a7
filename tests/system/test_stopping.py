"""Stopping a node, however impatient the caller is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.processes import properties


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_keep_coming_do_not_spoil_an_orderly_stop(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "moldau.broker", str(properties(tmp_path))]
    with subprocess.Popen(
        [*command, "--announce", "--format-if-needed"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        assert node.stdout.readline().startswith("ready: ")
        for _ in range(30_000):
            node.send_signal(number)
            try:
                node.wait(0.001)
            except subprocess.TimeoutExpired:
                continue
            break
        assert (node.returncode, "Traceback" in node.stderr.read()) == (0, False)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loaded", ["asyncio", "moldau.node.node", "uvloop"])
def test_a_stop_while_the_node_still_loads_is_a_clean_one(
    tmp_path: Path, number: signal.Signals, loaded: str
) -> None:
    """The interpreter's import lines say how far the start has come."""
    options = ["--announce", "--format-if-needed"]
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "moldau.broker", properties(tmp_path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        for line in node.stderr:
            if line.split("|")[-1].strip() == loaded:
                break
        node.send_signal(number)
        output, errors = node.communicate(timeout=60)
        assert (node.returncode, "Traceback" in errors) == (0, False), errors[-2000:]
        if loaded != "uvloop":
            assert "ready: " not in output
