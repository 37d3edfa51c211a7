"""`moldau bench` on the shared node, and `moldau log` on what it left there."""

from __future__ import annotations

import json
import pty
import shutil
import uuid
from pathlib import Path
from typing import TextIO

import pytest

from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, Cli, all_of, heard, table
from tests.system.processes import Ended

RECORD_COUNT = 600
SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def topic(cli: Cli) -> str:
    """A topic with two partitions and `RECORD_COUNT` records of 100 bytes."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    cli.ok("topics", "create", name, "--partitions", 2)
    figures = cli.json(
        *("bench", "produce", name, "--records", RECORD_COUNT, "--record-bytes", 100),
        *("--batch-bytes", 5_000, "--codec", "none"),
    )
    assert figures["records"] == RECORD_COUNT
    assert figures["requests"] > 2
    assert set(figures) >= {"records_per_second", "mb_per_second", "latency_p99.9_ms"}
    return name


@pytest.fixture
def copied(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    """The log directory of partition 0 of the topic, to damage."""
    target = tmp_path / "copy" / f"{topic}-0"
    shutil.copytree(cluster.data_directory() / f"{topic}-0", target)
    return target


def test_consume_reads_what_was_produced(cli: Cli, topic: str):
    assert cli.json("bench", "consume", topic)["records"] == RECORD_COUNT
    limited = cli.json("bench", "consume", topic, "--records", 1, "--fetch-bytes", 4_000)
    assert 1 <= limited["records"] < RECORD_COUNT


def test_latency(cli: Cli):
    name = f"latency-{uuid.uuid4().hex[:12]}"
    cli.ok("topics", "create", name)
    output = cli.ok("bench", "latency", name, "--seconds", "0.2", "--rate", 100)
    figures = dict(row for row in table(output)[1:] if len(row) == 2)
    assert figures["records"] == "20"
    assert float(figures["latency_p99_ms"]) > 0


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_a_topic_that_is_not_there(cli: Cli, command: str):
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cli.refused("bench", command, "no-such-topic")


def test_what_the_broker_refuses_ends_the_bench(cli: Cli):
    name = f"small-{uuid.uuid4().hex[:12]}"
    cli.ok("topics", "create", name, "--config", "max.message.bytes=500")
    said = cli.refused("bench", "produce", name, "--records", 10, "--record-bytes", 1_000)
    assert "MESSAGE_TOO_LARGE" in said


def test_dump_of_batches_records_and_indexes(cli: Cli, topic: str, copied: Path):
    rows = [json.loads(line) for line in cli.ok("log", "dump", copied, "--json").splitlines()]
    kinds = {row["row"] for row in rows}
    assert {"file", "batch", "index", "timeindex"} <= kinds
    batches = [row for row in rows if row["row"] == "batch"]
    assert sum(row["count"] for row in batches) == RECORD_COUNT // 2
    assert {row["compresscodec"] for row in batches} == {"none"}
    records = cli.ok("log", "dump", copied / SEGMENT, "--print-data").splitlines()
    assert sum("payload" in line for line in records) == RECORD_COUNT // 2
    short = cli.ok("log", "dump", copied / SEGMENT, "--max-bytes", 1).splitlines()
    assert len(short) == 2, "the file and its first batch"


def test_dump_into_a_pipe_that_is_closed_early(cli: Cli, copied: Path):
    def first_line(opened: TextIO) -> str:
        with opened:
            return opened.readline()

    with heard(first_line) as (output, line):
        assert cli.end("log", "dump", copied, "--print-data", stdout=output) == Ended(0, "", "")
        assert line.result().startswith("Dumping ")


def test_verify_names_file_and_position_of_damage(cli: Cli, copied: Path):
    cli.ok("log", "verify", copied)
    segment = copied / SEGMENT
    content = bytearray(segment.read_bytes())
    content[200] ^= 0xFF
    segment.write_bytes(content)
    ended = cli.end("log", "verify", copied, "--json")
    assert (ended.status, ended.errors) == (FAILED, "")
    document = json.loads(ended.output)
    assert document["summary"]["damage"] >= 1
    assert str(segment) in {finding["file"] for finding in document["findings"]}
    damage = next(each for each in document["findings"] if each["severity"] == "DAMAGE")
    assert damage["position"] == 0
    shown = cli.end("log", "verify", copied)
    assert shown.status == FAILED
    assert f"{segment}" in shown.output
    dumped = cli.end("log", "dump", segment)
    assert dumped.status == 0
    assert "isvalid: false" in dumped.output


def test_the_whole_directory_of_a_running_node(cli: Cli, cluster: Cluster, topic: str):
    summary = cli.json("log", "verify", cluster.data_directory(), "--deep")["summary"]
    assert summary["partitions"] >= 3
    assert summary["records"] >= RECORD_COUNT
    assert summary["damage"] == 0


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_path_that_is_not_there(cli: Cli, command: str, tmp_path: Path):
    missing = tmp_path / "nothing"
    assert str(missing) in cli.refused("log", command, missing)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["log", "verify", "{data}", "--json"], "checking"),
        (["log", "dump", "{segment}", "--json"], "dumping"),
        (["bench", "produce", "{topic}", "--records", "2000", "--json"], "producing"),
    ],
)
def test_a_terminal_sees_a_bar_and_results_stay_clean(
    cli: Cli, cluster: Cluster, topic: str, command: list[str], what: str
):
    data = cluster.data_directory()
    words = {"data": data, "topic": topic, "segment": data / f"{topic}-0" / SEGMENT}
    with heard(all_of, pty.openpty) as (terminal, drawn):
        output = cli.end(*(part.format(**words) for part in command), stderr=terminal).output
    assert what in drawn.result()
    assert "\x1b" in drawn.result()
    assert (
        [json.loads(line) for line in output.splitlines()]
        if what == "dumping"
        else json.loads(output)
    )


def test_bench_metadata_brings_its_own_cluster(cli: Cli, cluster: Cluster):
    before = sorted(cluster.directory.rglob("*-[0-9]"))
    document = cli.json(
        *("bench", "metadata", "--partitions", 45, "--partitions-per-topic", 20),
        *("--samples", 2, "--kills", 1, "--repeats", 1),
    )
    assert "phantom" in document["note"]
    assert (document["partitions"], document["topics"]) == (45, 3)
    figures = document["figures"]
    measured = {
        "partitions_per_second": 1,
        "broker_load_from_snapshot_s": 1,
        "controller_load_from_log_s": 1,
        "broker_ready_s": 1,
        "change_seen_after_sent_ms": 2,
        "failover_s": 1,
    }
    assert {name: figures[name]["count"] for name in measured} == measured
    assert all(figures[name]["minimum"] > 0 for name in measured)
    assert sorted(cluster.directory.rglob("*-[0-9]")) == before, "nobody else's is touched"


def test_bench_metadata_refuses_what_cannot_be(cli: Cli):
    line = cli.refused("bench", "metadata", "--partitions", 0, status=2)
    assert "--partitions" in line
    line = cli.refused("bench", "metadata", "--partitions-per-topic", 100_000, status=2)
    assert "--partitions-per-topic" in line
