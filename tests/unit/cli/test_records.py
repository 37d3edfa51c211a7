"""`moldau records delete`: what is checked before the first record goes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages import p21_delete_records as deletion
from moldau.protocol.schema import Message
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.cli.test_group_commands import EARLIEST, LATEST, answer_offsets
from tests.unit.cli.written_cluster import Replicated, WrittenCluster
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.real


def answer_deletion(request: Any) -> Message:
    return deletion.DeleteRecordsResponse(
        topics=[
            deletion.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    deletion.DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=each.offset
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        written = WrittenCluster({"t": [Replicated()] * 2, "__inner": [Replicated()]})
        written.answer_through(scripted)
        scripted.script(ApiKey.LIST_OFFSETS, answer_offsets)
        scripted.script(ApiKey.DELETE_RECORDS, answer_deletion)
        yield scripted


def deleted(broker: ScriptedBroker) -> list[tuple[str, int, int]]:
    return [
        (topic.name, each.partition_index, each.offset)
        for request in broker.requests_of(deletion.DeleteRecordsRequest)
        for topic in request.topics  # type: ignore[attr-defined]
        for each in topic.partitions
    ]


async def test_records_before_an_offset_go(broker: ScriptedBroker):
    said = await ok(broker, "records", "delete", "t:1@40", "--yes")
    assert said == "t-1 begins at 40, 30 offsets deleted\n"
    assert deleted(broker) == [("t", 1, 40)]
    rows = json.loads(await ok(broker, "records", "delete", "t@end", "-y", "--json"))
    assert rows == [
        {"topic": "t", "partition": index, "low_watermark": LATEST, "deleted_count": 80}
        for index in (0, 1)
    ]


async def test_away_from_a_terminal_it_needs_a_yes(broker: ScriptedBroker):
    done = await moldau(broker, "records", "delete", "t:1@40")
    assert (done.status, done.output) == (2, "")
    assert done.errors == (
        "moldau: this would delete 30 offsets of t-1 (10 to 39); "
        "give --yes if that is what you want\n"
    )
    done = await moldau(broker, "records", "delete", "t:0@40", "t:1@end")
    assert "delete 110 offsets of t-0@40, t-1@90;" in done.errors
    assert deleted(broker) == []


async def test_nothing_is_asked_where_nothing_goes(broker: ScriptedBroker):
    assert await ok(broker, "records", "delete", "t:0@3") == f"t-0 begins at {EARLIEST}\n"
    assert deleted(broker) == []


@pytest.mark.parametrize(
    ("places", "status", "said"),
    [
        (("t:0@20", "t:1@91"), 1, "nothing was changed: t-1 ends at 90, before 91"),
        (("t:7@20",), 1, "there is no partition 7 of t; it has 2"),
        (("__inner:0@20",), 2, "--internal allows it"),
        (("t:0",), 2, "'t:0' is not TOPIC:PARTITION@OFFSET, or TOPIC@end"),
        (("t:x@5",), 2, "is not TOPIC:PARTITION@OFFSET"),
        (("t:0@-5",), 2, "is not TOPIC:PARTITION@OFFSET"),
        (("t@5",), 2, "an offset is one partition's: t:PARTITION@5"),
        (("t:0@5", "t:0@6"), 2, "t:0 is named twice"),
        (("t:0@5", "t@end"), 2, "t is named twice"),
    ],
)
async def test_all_is_checked_before_anything_goes(
    broker: ScriptedBroker, places: tuple[str, ...], status: int, said: str
):
    done = await moldau(broker, "records", "delete", *places, "--yes")
    assert (done.status, done.output) == (status, "")
    assert said in done.errors
    assert deleted(broker) == []
