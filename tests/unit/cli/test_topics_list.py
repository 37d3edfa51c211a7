"""`moldau topics list` and the sizes of `describe`, against answers written down."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import AsyncIterator

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.cli.test_group_commands import answer_offsets
from tests.unit.cli.written_cluster import Replicated, WrittenCluster, request_counts
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

pytestmark = pytest.mark.real

KIB = 1024


@pytest.fixture
def written() -> WrittenCluster:
    """Three topics: one of many partitions, one of many bytes, an internal one."""
    return WrittenCluster(
        {
            "wide": [Replicated(size_bytes=KIB)] * 12,
            "big": [Replicated(size_bytes=3 * KIB * KIB)],
            "alone": [Replicated()],
            "__inner": [Replicated(size_bytes=KIB)],
        }
    )


@pytest.fixture
async def broker(written: WrittenCluster) -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        written.answer_through(scripted)
        yield scripted


async def test_a_pipe_gets_names_by_one_request(broker: ScriptedBroker):
    assert await ok(broker, "topics", "list") == "__inner\nalone\nbig\nwide\n"
    assert request_counts(broker) == {}
    assert len(broker.requests_of(MetadataRequest)) <= 2
    assert json.loads(await ok(broker, "topics", "list", "--names", "--json"))[1:] == [
        *("alone", "big", "wide")
    ]


async def test_a_terminal_gets_a_table_with_totals(broker: ScriptedBroker):
    reading, writing = pty.openpty()
    try:
        assert (await moldau(broker, "topics", "list", stdout=writing)).status == 0
        lines = os.read(reading, 4096).decode().splitlines()
    finally:
        os.close(writing)
        os.close(reading)
    assert [line.split(maxsplit=3) for line in (lines[0], *lines[2:5])] == [
        ["topic", "partitions", "replicas", "size"],
        ["alone", "1", "1", "0 B"],
        ["big", "1", "1", "3.0 MiB"],
        ["wide", "12", "1", "12.0 KiB"],
    ]
    assert lines[-1] == "3 topics, 14 partitions, 3.0 MiB"
    assert lines[3].endswith("3.0 MiB")
    assert lines[2].endswith("    0 B"), "numbers stand to the right"


async def test_the_largest_come_first(broker: ScriptedBroker):
    async def names(*options: str) -> list[str]:
        shown = (await ok(broker, "topics", "list", *options)).splitlines()
        return [line.split()[0] for line in shown[2 : shown.index("")]]

    assert await names("--sort", "size") == ["big", "wide", "alone"]
    assert await names("--sort", "partitions") == ["wide", "alone", "big"]
    assert await names("--sort", "name") == ["alone", "big", "wide"]
    assert await names("--sort", "size", "--internal") == ["big", "wide", "__inner", "alone"]
    assert await ok(broker, "topics", "list", "--sort", "size", "--names") == "big\nwide\nalone\n"
    refused = await moldau(broker, "topics", "list", "--sort", "age")
    assert (refused.status, refused.output) == (2, "")
    assert "'age' is not one of" in refused.errors


async def test_json_has_what_the_table_has(broker: ScriptedBroker):
    rows = json.loads(await ok(broker, "topics", "list", "--json", "--sort", "partitions"))
    assert [row["name"] for row in rows] == ["wide", "alone", "big"]
    assert rows[0].pop("topic_id")
    assert rows[0] == {
        "name": "wide",
        "internal": False,
        "partition_count": 12,
        "replication_factor": 1,
        "size_bytes": 12 * KIB,
    }


async def test_a_thousand_topics_take_as_many_requests_as_one(
    broker: ScriptedBroker, written: WrittenCluster
):
    written.topics = {f"topic-{number:03}": [Replicated()] * 3 for number in range(1_000)}
    rows = json.loads(await ok(broker, "topics", "list", "--json"))
    assert (len(rows), rows[-1]["partition_count"]) == (1_000, 3)
    assert request_counts(broker) == {
        "DescribeTopicPartitions": 2,
        "DescribeCluster": 1,
        "DescribeLogDirs": 1,
    }


async def test_sizes_that_may_not_be_seen_are_left_open(
    broker: ScriptedBroker, written: WrittenCluster
):
    written.logs_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    listed = await moldau(broker, "topics", "list", "--json")
    assert listed.status == 0
    assert {row["size_bytes"] for row in json.loads(listed.output)} == {None}
    assert "sizes are not known: " in listed.errors
    assert "CLUSTER_AUTHORIZATION_FAILED" in listed.errors


async def test_brokers_whose_sizes_are_missing_are_named(
    broker: ScriptedBroker, written: WrittenCluster
):
    written.topics["big"] = [Replicated(replicas=(NODE_ID, 8, 9), size_bytes=KIB)]
    listed = await moldau(broker, "topics", "list", "--sort", "size")
    assert listed.status == 0
    assert listed.errors == "moldau: sizes are without brokers 8, 9, which do not answer\n"


async def test_a_topics_description_has_sizes(broker: ScriptedBroker, written: WrittenCluster):
    broker.script(ApiKey.LIST_OFFSETS, answer_offsets)
    title, _, _, row, *_ = (await ok(broker, "topics", "describe", "big")).splitlines()
    assert "  1 partition  3.0 MiB" in title
    assert " 3.0 MiB" in row
    [document] = json.loads(await ok(broker, "topics", "describe", "big", "--json"))
    [partition] = document["partitions"]
    assert document["size_bytes"] == partition["size_bytes"] == 3 * KIB * KIB
    assert partition["replica_logs"][0]["size_bytes"] == 3 * KIB * KIB
    written.logs_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    [document] = json.loads(await ok(broker, "topics", "describe", "big", "--json"))
    assert document["size_bytes"] is document["partitions"][0]["size_bytes"] is None


async def test_topics_are_described_while_no_controller_leads(
    broker: ScriptedBroker, written: WrittenCluster
):
    broker.script(ApiKey.LIST_OFFSETS, answer_offsets)
    broker.silent.add(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    done = await moldau(broker, "topics", "describe", "big", "--timeout-ms", 2_000)
    assert done.status == 0
    assert " 3.0 MiB" in done.output.splitlines()[3]
    assert done.errors.startswith("moldau: which replicas are being moved is not known: ")
    assert done.errors.count("\n") == 1
