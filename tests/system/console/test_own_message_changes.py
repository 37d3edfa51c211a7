"""Messages that a person writes, and that come while a person looks on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from moldau.client import Producer
from tests.system.console.site import Site, basic
from tests.system.console.test_own_messages import ask, make_topic, messages_path, page_of, values

Event = tuple[str, str, Any]
"""Its id, its name and its data."""


@asynccontextmanager
async def tail_of(
    site: Site, topic: str, last_id: str | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a live tail."""
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    path = await messages_path(site, topic, "/live", **query)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(site.origin + path, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield _events(answer)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


async def produce(site: Site, topic: str, *numbers: int) -> None:
    async with Producer(config=site.cluster.client_properties) as producer:
        for number in numbers:
            await producer.send(topic, b'{"id": %d}' % number)


async def first(events: AsyncIterator[Event], name: str, count: int = 1) -> list[Event]:
    found: list[Event] = []
    async for event in events:
        if event[1] == name:
            found.append(event)
        if len(found) == count:
            break
    return found


async def test_what_is_produced_while_one_looks_on_is_shown(open_site: Site) -> None:
    await make_topic(open_site, "live", 2)
    await produce(open_site, "live", 1)
    async with tail_of(open_site, "live", where="value.id != 3") as events:
        await first(events, "progress")
        await produce(open_site, "live", 2, 3, 4)
        shown = await first(events, "record", 2)
        assert sorted(data["value"]["text"] for _, _, data in shown) == ['{"id": 2}', '{"id": 4}']
        [(_, _, progress)] = await first(events, "progress")
        assert progress["dropped"] == 0
        assert progress["read"]["records"] == 3


async def test_the_last_id_goes_on_where_it_was(open_site: Site) -> None:
    await make_topic(open_site, "resumed-live", 3)
    await produce(open_site, "resumed-live", *range(30))
    seen: list[int] = []
    last_id: str | None = None
    for _ in range(3):
        query = {"from": "earliest"}
        async with tail_of(open_site, "resumed-live", last_id, **query) as events:
            shown = await first(events, "record", 10)
            seen += [json.loads(data["value"]["text"])["id"] for _, _, data in shown]
            last_id = shown[-1][0]
    assert sorted(seen) == [*range(30)]


async def test_what_is_too_much_is_left_out_and_counted(open_site: Site) -> None:
    await make_topic(open_site, "rapid")
    await produce(open_site, "rapid", *range(300))
    async with tail_of(open_site, "rapid", **{"from": "earliest", "rate": 20}) as events:
        counts = {"record": 0}
        async for _, name, data in events:
            if name == "record":
                counts["record"] += 1
            elif data["read"]["records"] == 300:
                assert counts["record"] + data["dropped"] == 300
                assert data["dropped"] > 0
                break


async def test_ten_that_do_not_read_delay_none(open_site: Site) -> None:
    """Ten connections take nothing of 20 MB each; the eleventh gets what it wants."""
    await make_topic(open_site, "unread")
    async with Producer(config=open_site.cluster.client_properties) as producer:
        sent = [producer.send_nowait("unread", b"x" * 20_000) for _ in range(1_000)]
        for each in sent:
            await each
    path = await messages_path(open_site, "unread", "/live", **{"from": "earliest", "rate": 5_000})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=20)) as session:
        opened = [await session.get(open_site.origin + path) for _ in range(10)]
        assert [each.status for each in opened] == [200] * 10
        query = {"from": "earliest", "rate": 5_000}
        async with tail_of(open_site, "unread", **query) as events:
            assert len(await first(events, "record", 1_000)) == 1_000
        assert len(values(await page_of(open_site, "unread", limit=3))) == 3
        for answer in opened:
            answer.close()


async def test_a_tail_of_what_may_not_be_read(open_site: Site, secure_site: Site) -> None:
    await make_topic(secure_site, "a-tail")
    cluster_id = await secure_site.cluster_id(basic("alice"))
    path = f"/api/v1/clusters/{cluster_id}/topics/a-tail/messages"
    refused = await secure_site.ask(f"{path}/live", basic("bob"))
    assert (refused.status, refused.document["kafka_error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    body = {"value": {"encoding": "utf-8", "text": "x"}}
    refused = await secure_site.ask(f"{path}/produce", basic("bob"), method="POST", body=body)
    assert (refused.status, refused.document["kafka_error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    made = await secure_site.ask(f"{path}/produce", basic("alice"), method="POST", body=body)
    assert made.status == 200
    assert (await ask(open_site, "mistyped", "/live")).status == 404


async def test_a_wrong_id_or_filter_is_refused(open_site: Site) -> None:
    await make_topic(open_site, "wrong-live")
    path = await messages_path(open_site, "wrong-live", "/live")
    refused = await open_site.ask(path, {"Last-Event-ID": '{"other-0": 1}'})
    assert refused.status == 422
    assert (await ask(open_site, "wrong-live", "/live", where="value ==")).status == 422
    assert (await ask(open_site, "wrong-live", "/live", rate=0)).status == 422


async def write(site: Site, topic: str, body: object) -> Any:
    path = await messages_path(site, topic, "/produce")
    return await site.ask(path, method="POST", body=body)


async def test_one_record_is_written_as_it_was_typed(open_site: Site) -> None:
    await make_topic(open_site, "typed", 3)
    body = {
        "partition": 2,
        "key": {"encoding": "utf-8", "text": "<k>"},
        "value": {"encoding": "base64", "text": "/wA="},
        "headers": [{"name": "h", "value": {"encoding": "utf-8", "text": "v"}}],
        "timestamp_ms": 1_600_000_000_000,
    }
    made = (await write(open_site, "typed", body)).document
    assert (made["partition"], made["offset"]) == (2, 0)
    assert made["timestamp_ms"] == 1_600_000_000_000
    assert made["command"].startswith("printf %s ")
    shown = (await ask(open_site, "typed", "/one", partition=2, offset=0)).document
    assert (shown["key"]["text"], shown["value"]["text"]) == ("<k>", "/wA=")
    assert [(each["name"], each["value"]["text"]) for each in shown["headers"]] == [("h", "v")]
    tombstone: dict[str, Any] = {
        "key": {"encoding": "utf-8", "text": "<k>"},
        "value": None,
        "headers": [],
    }
    made = (await write(open_site, "typed", tombstone)).document
    where = {"partition": made["partition"], "offset": made["offset"]}
    assert (await ask(open_site, "typed", "/one", **where)).document["value"] is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"value": {"encoding": "base64", "text": "?"}}, 422),
        ({"value": {"encoding": "hex", "text": ""}}, 422),
        ({"key": None}, 422),
        ({"value": None, "partition": 7}, 422),
        ({"value": None, "headers": [{}]}, 422),
        ({"value": {"encoding": "utf-8", "text": "x" * 5_000}}, 413),
    ],
)
async def test_what_cannot_be_written_is_refused(
    open_site: Site, body: object, status: int
) -> None:
    topic = "unwritten"
    if (await ask(open_site, topic)).status == 404:
        await make_topic(open_site, topic, 1, **{"max.message.bytes": "1000"})
    assert (await write(open_site, topic, body)).status == status
    assert (await write(open_site, "mistyped", {"value": None})).status == 404


async def test_many_tails_at_once(open_site: Site) -> None:
    await make_topic(open_site, "shared")
    await produce(open_site, "shared", *range(20))

    async def read() -> int:
        async with tail_of(open_site, "shared", **{"from": "earliest"}) as events:
            return len(await first(events, "record", 20))

    assert await asyncio.gather(*(read() for _ in range(10))) == [20] * 10
