"""Whole tables in and out, beside the way of single records."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import Consumer, Producer, TopicPartition
from tests.client.conftest import MakeTopic
from tests.client.reading import DEADLINE_S, read_topic

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_table_goes_out_and_comes_back(bootstrap: str, make_topic: MakeTopic, codec: str):
    topic = await make_topic(partitions=2)
    count = 50_000
    table = pa.table(
        {
            "key": [None if n % 10 == 0 else b"%d" % (n % 97) for n in range(count)],
            "value": [None if n % 11 == 0 else b"value %d" % n for n in range(count)],
            "partition": pa.array([n % 2 for n in range(count)], pa.int32()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else [] for n in range(count)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    async with Producer(bootstrap, compression_type=codec) as producer:
        written = await producer.send_arrow(topic, table)
    assert written.row_count == count
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    rows = []
    async with (
        asyncio.timeout(DEADLINE_S),
        Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(places)
        while len(rows) < count:
            rows += (await consumer.poll_arrow(max_records=20_000, timeout_ms=5_000)).to_pylist()
    sent = table.to_pylist()
    for partition in (0, 1):
        mine = [row for row in rows if row["partition"] == partition]
        assert [row["offset"] for row in mine] == list(range(count // 2))
        assert [(row["key"], row["value"]) for row in mine] == [
            (row["key"], row["value"]) for row in sent[partition::2]
        ]
    records = await read_topic(bootstrap, topic)
    second = [each for each in records if each.partition == 1]
    assert [tuple(each.headers) for each in second[:6]] == [
        tuple((header["key"], header["value"]) for header in row["headers"]) for row in sent[1:13:2]
    ]


async def test_keys_go_where_single_records_go(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic(partitions=5)
    keys = [b"key-%d" % number for number in range(200)]
    async with Producer(bootstrap) as producer:
        single = {key: (await producer.send(topic, b"", key=key)).partition for key in keys}
        await producer.send_arrow(topic, pa.table({"key": keys, "value": [b"arrow"] * len(keys)}))
    found = {
        each.key: each.partition
        for each in await read_topic(bootstrap, topic)
        if each.value == b"arrow"
    }
    assert found == single
