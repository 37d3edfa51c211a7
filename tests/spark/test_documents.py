"""docs/quickstart/spark.md and docs/spark.md do what they say: commands, programs and pipelines."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Producer
from moldau.testing import Cluster
from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Terminal
from tests.tidy.sources import ROOT

QUICKSTART = "docs/quickstart/spark.md"
DOCUMENT = "docs/spark.md"
ADDRESS = "localhost:9092"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none")
    with Terminal(tmp_path) as opened:
        yield opened


def blocks(document: str, language: str) -> list[str]:
    """The text of each block of a document that is in that language."""
    found = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    return [text for each, text in found if each == language]


def test_the_quickstart(terminal: Terminal) -> None:
    commands = [each.text for each in commands_to_run(QUICKSTART)]
    dev, create, produce, consume, pipeline = (
        each for each in commands if "moldau " in each and not each.startswith("pip ")
    )
    address = terminal.serve(dev, "--port 0").wait_said(r"ready: (\S+)")[1]
    terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = terminal.instead[ADDRESS] = address
    terminal.run(create)
    terminal.run(produce)
    said = terminal.program("\n".join(blocks(QUICKSTART, "python")))
    assert re.search(r"\|\s*UA\|\s*9\.5\|", said), said
    assert re.search(r"\|\s*AA\|\s*2\.0\|", said), said
    assert terminal.run(consume) == "AA: 2\nUA: 12\nUA: 7\n"
    [archive] = blocks(QUICKSTART, "yaml")
    (terminal.home / "archive.yaml").write_text(archive.replace(ADDRESS, address))
    terminal.run(pipeline)
    assert list((terminal.home / "archive").rglob("*.parquet")) != []


@pytest.mark.long
def test_pipelines_and_sinks(terminal: Terminal) -> None:
    *sinks, check, run, run_bigger, settle = (each.text for each in commands_to_run(DOCUMENT))
    with Cluster(config={"transaction.two.phase.commit.enable": "true"}) as cluster:
        address = cluster.bootstrap_server
        terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = address
        with Admin(address) as admin:
            admin.create_topics([NewTopic("flights")])
        [delays] = [text for text in blocks(DOCUMENT, "yaml") if "name: delays" in text]
        (terminal.home / "delays.yaml").write_text(delays.replace(ADDRESS, address))
        terminal.run(check)
        for number, command in enumerate((run, run_bigger)):
            send_flights(address, hour=number)
            pipeline = terminal.serve(command)
            pipeline.wait_said(r'"row_count": ?\d+' if "--json" in command else r"\b2 rows|\b2\b")
            assert "Traceback" not in pipeline.interrupt()
        terminal.run(settle)
        use_sinks(terminal, sinks)


def send_flights(address: str, *, hour: int) -> None:
    """Two flights, days apart, so that the watermark passes."""
    with Producer(address) as producer:
        for day in (1 + 10 * hour, 9 + 10 * hour):
            flight = {"carrier": "UA", "dep_delay": 2, "time_hour": f"2026-01-{day:02}T05:00:00Z"}
            producer.send("flights", json.dumps(flight).encode())


def use_sinks(terminal: Terminal, commands: list[str]) -> None:
    """List, move, settle and forget the sink that the pipeline has left."""
    listing, move, settle, forget_query, forget = commands
    [documented] = re.findall(r"moldau-[0-9a-f]{16}", move)
    listed = json.loads(terminal.run(f"{listing} --json"))
    assert listed, "the pipeline has written as a sink"
    terminal.instead[documented] = listed[0]["sink"]
    terminal.instead["b1f0…"] = listed[0]["query"]
    assert listed[0]["sink"] in terminal.run(listing)
    terminal.run(move)
    assert "orders" in terminal.run(listing)
    terminal.run(settle)
    terminal.run(forget_query)
    terminal.run(forget)
    assert "orders" not in terminal.run(listing)
