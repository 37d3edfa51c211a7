"""The commands of docs/console.md, on a cluster of `moldau dev` and beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Terminal

LISTEN = ("--listen", "localhost:0")
SAYS_WHERE = r"http://(localhost:\d+)/"

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_the_commands_of_the_console(tmp_path: Path) -> None:
    commands = [each.text for each in commands_to_run("docs/console.md")]
    dev, beside, beside_with_file, clusters, cluster_id, *rest = commands
    create, produce, consume, topics = rest
    with Terminal(tmp_path) as terminal:
        running = terminal.serve(dev, "--port 0")
        http = running.wait_said(SAYS_WHERE)[1]
        bootstrap = running.wait_said(r"ready: (\S+)")[1]
        terminal.instead = {"localhost:9392": http, "broker-1.example:9092": bootstrap}
        (tmp_path / "client.properties").write_text(f"bootstrap.servers={bootstrap}\n")
        [cluster] = json.loads(terminal.run(clusters))["data"]
        created = json.loads(terminal.run(f"{cluster_id}; {create}"))
        assert (created["cluster_id"], created["topic_name"]) == (cluster["cluster_id"], "flights")
        assert json.loads(terminal.run(f"{cluster_id}; {produce}"))["offset"] == 0
        terminal.environ["C"] = cluster["cluster_id"]
        reading = terminal.serve(consume)
        record = json.loads(reading.wait_said(r'\{"partition".*\}')[0])
        assert record["key"]["text"] == "PRG"
        reading.kill()
        rows = json.loads(terminal.run(topics))["data"]
        [row] = (each for each in rows if each["name"] == "flights")
        assert (row["record_count"], row["groups"]) == (1, [])
        for command in (beside, beside_with_file):
            console = terminal.serve(command, *LISTEN)
            there = console.wait_said(SAYS_WHERE)[1]
            assert json.loads(terminal.run(f"curl -s {there}/v3/clusters"))["data"]
            console.interrupt()
        running.interrupt()
