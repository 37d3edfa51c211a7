"""The console's messages at an Apache Kafka cluster: searched, followed, written and downloaded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from moldau.client import Admin, Consumer, NewTopic, Producer
from moldau.console.application import Console
from moldau.console.people import Way
from moldau.console.settings import ConsoleSettings
from tests.interop.java.server import SMALL, KafkaServer
from tests.interop.java.tools import JavaTools

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]
TOPIC = "flights.v1"


@pytest.fixture
async def address(java: JavaTools, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a topic's messages at a console beside the cluster."""
    with KafkaServer(java, tmp_path / "kafka", config=SMALL) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_server}
        await fill(properties)
        console = Console(ConsoleSettings(Way(properties)))
        runner = web.ServerRunner(web.Server(console))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        base = f"http://{host}:{port}/api/v1"
        cluster_id = json.loads(await got(f"{base}/session"))["cluster_id"]
        yield f"{base}/clusters/{cluster_id}/topics/{TOPIC}/messages"
        await runner.cleanup()
        await console.close()


async def fill(properties: dict[str, str]) -> None:
    """Records in two partitions, a transaction that was aborted, and a group's offsets."""
    async with Admin(config=properties) as admin:
        await admin.create_topics([NewTopic(TOPIC, 2, 1)])
    async with Producer(config=properties) as producer:
        for number in range(10):
            await producer.send(TOPIC, b'{"id": %d}' % number, partition=number % 2)
    async with Producer(config={**properties, "transactional.id": "t"}) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send(TOPIC, b'{"id": 10}', partition=0)
        await producer.abort_transaction()
    settings = {**properties, "group.id": "readers", "auto.offset.reset": "earliest"}
    async with Consumer(config=settings) as consumer:
        consumer.subscribe([TOPIC])
        await consumer.getone()
        await consumer.commit()


async def got(address: str) -> bytes:
    """The body of a good answer."""
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read()


def ids(records: list[Any]) -> list[int]:
    return [json.loads(each["value"]["text"])["id"] for each in records]


async def test_messages_of_an_apache_kafka_cluster(address: str) -> None:
    newest = json.loads(await got(f"{address}?from=last:4"))
    assert ids(newest["records"]) == [10, 9, 8, 7]
    more = json.loads(await got(f"{address}?from=last:4&after={newest['next']}"))
    assert ids(more["records"]) == [6, 5, 4, 3]
    committed = json.loads(await got(f"{address}?from=earliest&isolation=read_committed"))
    assert ids(committed["records"]) == [*range(10)]
    assert committed["read"]["stopped_by"] == "end"
    found = json.loads(await got(f"{address}?from=earliest&where=value.id%20%3E%208"))
    assert ids(found["records"]) == [9, 10]
    one = json.loads(await got(f"{address}/one?partition=1&offset=2"))
    assert ids([one]) == [5]
    assert await got(f"{address}/one?partition=1&offset=2&part=value") == b'{"id": 5}'
    lines = (await got(f"{address}/download?format=jsonl")).splitlines()
    assert sorted(ids([json.loads(line) for line in lines])) == [*range(11)]
    offsets = address.replace(TOPIC, "__consumer_offsets")
    page = json.loads(await got(f"{offsets}?from=last:100&limit=100"))
    keys = [json.loads(each["key"]["text"]) for each in page["records"]]
    assert {"group": "readers", "topic": TOPIC, "partition": 0} in [
        each["keyData"] for each in keys
    ]
    states = address.replace(TOPIC, "__transaction_state")
    page = json.loads(await got(f"{states}?from=last:100&limit=100"))
    assert {each["key"]["encoding"] for each in page["records"]} == {"record"}


async def test_an_apache_kafka_cluster_is_followed_and_written_to(address: str) -> None:
    body = {"key": None, "value": {"encoding": "utf-8", "text": '{"id": 11}'}, "partition": 1}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{address}/live") as live,
    ):
        async with session.post(f"{address}/produce", json=body) as made:
            document = await made.json()
        assert (document["partition"], document["offset"]) == (1, 5)
        async for line in live.content:
            if line.startswith(b"data: ") and b'"offset"' in line:
                assert ids([json.loads(line.removeprefix(b"data: "))]) == [11]
                break
