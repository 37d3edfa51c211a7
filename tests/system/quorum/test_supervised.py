"""`quorum bootstrap --start` and `dev` with many nodes: up, restarted, down, nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from tests.kit.waiting import until
from tests.system.processes import run_cli

LOG_LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO    local\.supervisor: "


class Run:
    """A command in the foreground; its events are collected beside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[str] = []
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    def address(self) -> str:
        """What the `ready` line says."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready: "):
                return line.removeprefix("ready: ").strip()
        raise AssertionError(f"not ready: {self.events}")

    def process_id(self, name: str) -> int:
        """The newest process of a node."""
        found = [re.search(rf": {name} starts as process (\d+)$", line) for line in self.events]
        return int([match[1] for match in found if match][-1])

    def join(self) -> int:
        """The exit status, when everything has been said."""
        status = self.process.wait(60)
        self._reader.join()
        return status

    def _collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(line.rstrip("\n"))


@contextmanager
def running(*arguments: object) -> Iterator[Run]:
    with subprocess.Popen(
        [sys.executable, "-m", "moldau.cli.main", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        run = Run(process)
        try:
            yield run
        finally:
            process.kill()


def is_gone(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_cluster_is_bootstrapped_supervised_and_stopped(tmp_path: Path, base_port: int):
    home = tmp_path / "cluster"
    with running("quorum", "bootstrap", home, "--base-port", base_port, "--start") as run:
        address = run.address()
        new = tmp_path / "new"
        for twice in (
            ("quorum", "bootstrap", new / "cluster", "--base-port", base_port, "--start"),
            ("dev", "--data", home),
        ):
            refused = run_cli(*twice)
            assert (refused.status, refused.output) == (1, "")
            told = f"localhost:{base_port} is in use; broker 1 has it in `listeners`"
            assert told in refused.complaint
        assert not new.exists()
        assert address == ",".join(f"localhost:{base_port + number}" for number in range(3))
        assert run_cli("topics", "create", "t", "-b", address).status == 0
        [topic] = json.loads(run_cli("topics", "describe", "t", "-b", address, "--json").output)
        assert topic["min_insync_replicas"] == 2
        assert len(topic["partitions"][0]["replicas"]) == 3
        for name in ("broker 2", "controller 101"):
            process_id = run.process_id(name)
            os.kill(process_id, signal.SIGKILL)
            until(
                lambda name=name, old=process_id: run.process_id(name) != old,  # type: ignore[misc]
                what=f"{name} is started again",
            )
        until(
            lambda: [line for line in run.events if ": broker 2 serves on" in line][1:],
            what="broker 2 serves again",
        )
        process_ids = [run.process_id(f"broker {number}") for number in (1, 2, 3)]
        process_ids += [run.process_id(f"controller {number}") for number in (101, 102, 103)]
        run.process.send_signal(signal.SIGTERM)
        assert run.join() == 0
    assert all(is_gone(process_id) for process_id in process_ids)
    assert sum(line.endswith(" stopped") for line in run.events) == 7
    assert run.events[-1].endswith(" local.supervisor: stopped")
    assert [line for line in run.events if not re.match(LOG_LINE, line)] == []
    for number in (1, 2, 3):
        assert (home / f"broker-{number}" / "data" / ".kafka_cleanshutdown").exists()
    refused = run_cli("quorum", "bootstrap", home)
    assert refused.status == 1
    assert "is not empty" in refused.complaint
    config = NodeConfig.load(str(home / "controller-101" / "server.properties"))
    assert (config["default.replication.factor"], config["min.insync.replicas"]) == (3, 2)


def test_no_node_outlives_a_supervisor_that_is_killed(tmp_path: Path, base_port: int):
    arguments = ("--controllers", 1, "--brokers", 1, "--base-port", base_port, "--start")
    with running("quorum", "bootstrap", tmp_path / "cluster", *arguments) as run:
        run.address()
        process_ids = [run.process_id("broker 1"), run.process_id("controller 101")]
        run.process.send_signal(signal.SIGKILL)
        run.join()
    for process_id in process_ids:
        until(lambda process_id=process_id: is_gone(process_id), what="the node is gone")  # type: ignore[misc]


@pytest.mark.parametrize("keep", [False, True])
def test_dev_with_many_nodes(tmp_path: Path, keep: bool):
    data = ("--data", tmp_path / "kept") if keep else ()
    arguments = ("dev", "--controllers", 3, "--brokers", 2, "--port", 0, "--topic", "a:4")
    for shape in [arguments, ("dev",)] if keep else [arguments]:
        with running(*shape, *data) as run:
            address = run.address()
            assert len(address.split(",")) == 2
            listed = run_cli("topics", "list", "-b", address)
            assert listed.output == "a\n"
            run.process.send_signal(signal.SIGINT)
            assert run.join() == 0
    if keep:
        assert (tmp_path / "kept" / "controller-101" / "data" / "meta.properties").exists()
        for option, value in (("--controllers", 1), ("--brokers", 1), ("--port", 9092)):
            other = run_cli("dev", option, value, *data)
            assert "holds a cluster of 3 controllers and 2 brokers on localhost:" in other.complaint
            assert f"cannot have {option} {value}: " in other.complaint
        one = run_cli("dev", "--data", tmp_path / "kept" / "broker-1")
        assert "holds only broker 1 of a cluster" in one.complaint
