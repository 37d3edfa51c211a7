"""A reader of events goes on behind a kill of its node: none is missed, none comes twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from moldau.client import Admin, NewTopic, Producer
from moldau.local.layout import PortHolder
from moldau.testing import Cluster
from tests.kit.waiting import until_async
from tests.system.console.site import CONSOLE, Site

TOPIC = "fed"
TRANSACTIONS, IN_EACH = 60, 5
KILLS_AT = (60, 150)
"""The node is killed when the reader has so many records."""


@pytest.fixture
def site() -> Iterator[Site]:
    """A node whose console is at the same address when it comes again."""
    ports = PortHolder("127.0.0.1")
    [port] = ports.take()
    address = f"127.0.0.1:{port}"
    try:
        with Cluster(config={**CONSOLE, "moldau.http.listener": address}) as cluster:
            yield Site(cluster, address)
    finally:
        ports.close()


async def feed(site: Site) -> None:
    """Numbers in committed transactions, with aborted ones between them."""
    settings = {**site.cluster.client_properties, "transactional.id": "feeder"}
    async with Producer(config=settings) as producer:
        await producer.init_transactions()
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for each in range(IN_EACH):
                await producer.send(TOPIC, str(number * IN_EACH + each).encode(), partition=0)
            await producer.commit_transaction()
            if number % 3 == 0:
                producer.begin_transaction()
                await producer.send(TOPIC, b"aborted", partition=0)
                await producer.abort_transaction()


async def events(site: Site, path: str) -> AsyncIterator[int]:
    """The values of the records; the reader connects again however the node goes away."""
    last_id: str | None = None
    timeout = aiohttp.ClientTimeout(total=None, sock_read=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            headers = {"Accept": "text/event-stream"}
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            event: dict[str, str] = {}
            try:
                async with session.get(site.origin + path, headers=headers) as answer:
                    async for line in answer.content:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name:
                            event[name] = value
                            continue
                        if event.get("event") in ("record", "progress"):
                            last_id = event["id"]
                        if event.get("event") == "record":
                            yield int(json.loads(event["data"])["value"]["text"])
                        event = {}
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                continue


async def test_a_reader_goes_on_behind_a_kill(site: Site) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic(TOPIC, 1)])
    path = f"/api/v1/clusters/{await site.cluster_id()}/topics/{TOPIC}/records?from=earliest"
    feeding = asyncio.create_task(feed(site))
    node, seen, killed = site.cluster.node(), list[int](), 0
    reader = events(site, path)
    try:
        async for value in reader:
            seen.append(value)
            if len(seen) == TRANSACTIONS * IN_EACH:
                break
            if len(seen) in KILLS_AT:
                killed += 1
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                await asyncio.to_thread(node.wait_ready)
        await feeding
    finally:
        feeding.cancel()
        await reader.aclose()  # type: ignore[attr-defined]
    assert killed == len(KILLS_AT)
    assert seen == [*range(TRANSACTIONS * IN_EACH)]

    async def serves() -> bool:
        return (await site.ask("/api/v1/session")).status == 200

    await until_async(serves, what="the console behind the kills")
