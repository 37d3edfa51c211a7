"""Records over HTTP: produced while the body comes, consumed as events and as lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from moldau.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.kit.waiting import until_async
from tests.system.console.site import Site, basic


async def make_topic(site: Site, name: str, partitions: int = 1) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic(name, partitions)])


async def fill(site: Site, name: str, count: int, partitions: int = 1, first: int = 0) -> None:
    async with Producer(config=site.cluster.client_properties) as producer:
        sent = [
            producer.send_nowait(name, str(number).encode(), partition=number % partitions)
            for number in range(first, first + count)
        ]
        for each in sent:
            await each


async def records_in(site: Site, name: str, count: int) -> list[Any]:
    """The first records of a one-partition topic."""
    async with Consumer(config=site.cluster.client_properties) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        consumer.seek(TopicPartition(name, 0), 0)
        return [await consumer.getone() for _ in range(count)]


@asynccontextmanager
async def open_request(
    site: Site, method: str, path: str, **more: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session,
        session.request(method, site.origin + path, **more) as answer,
    ):
        yield answer


async def v3_records(site: Site, name: str) -> str:
    return f"/v3/clusters/{await site.cluster_id()}/topics/{name}/records"


async def own_records(site: Site, name: str, query: str = "") -> str:
    return f"/api/v1/clusters/{await site.cluster_id()}/topics/{name}/records{query}"


async def produce(site: Site, name: str, body: bytes) -> list[Any]:
    headers = {"Content-Type": "application/json"}
    path = await v3_records(site, name)
    async with open_request(site, "POST", path, data=BytesIO(body), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return [json.loads(line) for line in (await answer.text()).splitlines()]


async def test_records_of_every_type(open_site: Site) -> None:
    await make_topic(open_site, "types")
    body = b"""
        {"key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"a": 1}},
         "headers": [{"name": "h", "value": "SGk="}], "timestamp": "2021-02-05T19:14:42Z"}
        {"partition_id": 0, "value": {"type": "BINARY", "data": "AP8="}}
        {"key": {"type": "JSON", "data": 7}}
    """
    reports = await produce(open_site, "types", body)
    assert [each["error_code"] for each in reports] == [200, 200, 200]
    assert [each["offset"] for each in reports] == [0, 1, 2]
    assert reports[0] == {
        "error_code": 200,
        "cluster_id": await open_site.cluster_id(),
        "topic_name": "types",
        "partition_id": 0,
        "offset": 0,
        "timestamp": "2021-02-05T19:14:42.000Z",
        "key": {"type": "STRING", "size": 1},
        "value": {"type": "JSON", "size": 7},
    }
    first, second, third = await records_in(open_site, "types", 3)
    assert (first.key, first.value, first.timestamp_ms) == (b"k", b'{"a":1}', 1_612_552_482_000)
    assert first.headers == (("h", b"Hi"),)
    assert (second.key, second.value) == (None, b"\x00\xff")
    assert (third.key, third.value) == (b"7", None)


async def test_one_bad_record_stops_no_other_one(open_site: Site) -> None:
    await make_topic(open_site, "mixed")
    good = b'{"value": {"type": "STRING", "data": "x"}}'
    too_large = json.dumps({"value": {"type": "STRING", "data": "y" * 1_200_000}}).encode()
    reports = await produce(
        open_site, "mixed", good + b'{"value": {"data": "x"}}' + too_large + good + b"oops"
    )
    assert [each["error_code"] for each in reports] == [200, 40002, 41301, 200, 400]
    assert [each["offset"] for each in reports if each["error_code"] == 200] == [0, 1]
    assert "type" in reports[1]["message"]


async def test_a_time_after_the_year_9999_is_written(open_site: Site) -> None:
    """A topic may take it; ISO 8601 does not have it."""
    async with Admin(config=open_site.cluster.client_properties) as admin:
        configs = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        await admin.create_topics([NewTopic("far", 1, configs=configs)])
    value = b'"value": {"type": "STRING", "data": "x"}'
    body = b"".join(b'{"timestamp": %d, %b}' % (each, value) for each in (2**62, 2**63, 12))
    reports = await produce(open_site, "far", body)
    assert [each["error_code"] for each in reports] == [200, 40002, 200]
    assert [reports[0]["timestamp"], reports[2]["timestamp"]] == [None, "1970-01-01T00:00:00.012Z"]
    assert (await records_in(open_site, "far", 1))[0].timestamp_ms == 2**62


async def test_topics_that_do_not_exist_are_not_made(open_site: Site) -> None:
    headers = {"Content-Type": "application/json"}
    path = await v3_records(open_site, "mistyped")
    async with open_request(open_site, "POST", path, data=b"{}", headers=headers) as answer:
        document = await answer.json(content_type=None)
        assert (answer.status, document["error_code"]) == (404, 40403)
    path = await own_records(open_site, "mistyped")
    async with open_request(open_site, "GET", path) as answer:
        assert answer.status == 404


async def test_reports_come_while_the_body_does(open_site: Site) -> None:
    """Each record is sent when the report of the one before has come."""
    await make_topic(open_site, "turns")
    reported: asyncio.Queue[Any] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        for number in range(5):
            yield json.dumps({"value": {"type": "JSON", "data": number}}).encode()
            assert (await reported.get())["offset"] == number

    path, headers = await v3_records(open_site, "turns"), {"Content-Type": "application/json"}
    async with open_request(open_site, "POST", path, data=body(), headers=headers) as answer:
        count = 0
        async for line in answer.content:
            count += 1
            reported.put_nowait(json.loads(line))
    assert count == 5


async def test_many_records_in_one_request(open_site: Site) -> None:
    await make_topic(open_site, "many", 3)
    one = b'{"value": {"type": "STRING", "data": "0123456789"}}\n'

    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield one * 100

    path, headers = await v3_records(open_site, "many"), {"Content-Type": "application/json"}
    async with open_request(open_site, "POST", path, data=body(), headers=headers) as answer:
        codes = [json.loads(line)["error_code"] async for line in answer.content]
    assert codes == [200] * 10_000


async def lines_of(site: Site, path: str, **more: Any) -> list[Any]:
    async with open_request(site, "GET", path, **more) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"].startswith("application/x-ndjson")
        return [json.loads(line) async for line in answer.content if line.strip()]


async def test_lines_up_to_the_end(open_site: Site) -> None:
    await make_topic(open_site, "lines", 2)
    await fill(open_site, "lines", 100, 2)
    path = await own_records(open_site, "lines", "?from=earliest&until_end=true")
    *records, last = await lines_of(open_site, path)
    assert sorted(int(each["value"]["text"]) for each in records) == [*range(100)]
    assert last["read"]["records"] == 100
    assert (last["read"]["is_complete"], last["read"]["stopped_by"]) == (True, "end")
    path = await own_records(
        open_site, "lines", "?from=offset:45&partition=1&until_end=true&max_value_bytes=1"
    )
    *records, last = await lines_of(open_site, path)
    assert [each["offset"] for each in records] == [45, 46, 47, 48, 49]
    assert {each["partition"] for each in records} == {1}
    assert records[0]["value"] == {
        "encoding": "utf-8",
        "text": "9",
        "size_bytes": 2,
        "is_truncated": True,
    }


@pytest.mark.parametrize(
    ("query", "count", "stopped_by"),
    [
        ("from=earliest&max_records=7", 7, "records"),
        ("from=earliest&max_bytes=10", 10, "bytes"),
        ("from=last:3&until_end=true", 3, "end"),
        ("from=latest&max_seconds=1", 0, "time"),
        ("from=timestamp:99999999999999&until_end=true", 0, "end"),
        ("from=offset:999&until_end=true", 0, "end"),
    ],
)
async def test_budgets_end_a_stream(
    open_site: Site, query: str, count: int, stopped_by: str
) -> None:
    async with Admin(config=open_site.cluster.client_properties) as admin:
        if "budget" not in await admin.list_topics():
            await admin.create_topics([NewTopic("budget", 1)])
            await fill(open_site, "budget", 10)
            await fill(open_site, "budget", 10)
    *records, last = await lines_of(open_site, await own_records(open_site, "budget", f"?{query}"))
    assert len(records) == last["read"]["records"] == count
    assert last["read"]["stopped_by"] == stopped_by


@pytest.mark.parametrize(
    "query",
    ["from=x", "partition=9", "partition=x", "max_records=0", "isolation=dirty", "format=x"],
)
async def test_queries_that_cannot_be(open_site: Site, query: str) -> None:
    async with Admin(config=open_site.cluster.client_properties) as admin:
        if "queried" not in await admin.list_topics():
            await admin.create_topics([NewTopic("queried", 1)])
    path = await own_records(open_site, "queried", f"?{query}")
    async with open_request(open_site, "GET", path) as answer:
        assert answer.status == 422


async def events_of(
    site: Site, path: str, last_id: str | None, count: int
) -> list[tuple[str, str, Any]]:
    """So many records' events: id, name, data. Then the reader goes away."""
    headers = {"Accept": "text/event-stream"}
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    found: list[tuple[str, str, Any]] = []
    event: dict[str, str] = {}
    async with open_request(site, "GET", path, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        async for line in answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                event[name] = value
            elif event:
                if event["event"] == "record":
                    found.append((event["id"], event["event"], json.loads(event["data"])))
                event = {}
                if len(found) == count:
                    break
    return found


async def test_the_last_event_id_goes_on_exactly(open_site: Site) -> None:
    await make_topic(open_site, "resumed", 3)
    await fill(open_site, "resumed", 60, 3)
    path = await own_records(open_site, "resumed", "?from=earliest")
    seen: list[int] = []
    last_id: str | None = None
    for _ in range(6):
        found = await events_of(open_site, path, last_id, 10)
        seen += [int(data["value"]["text"]) for _, _, data in found]
        last_id = found[-1][0]
    assert sorted(seen) == [*range(60)]
    assert last_id is not None
    assert json.loads(last_id) == {f"resumed-{each}": 20 for each in range(3)}
    await fill(open_site, "resumed", 3, 3, first=60)
    found = await events_of(open_site, path, last_id, 3)
    assert sorted(int(data["value"]["text"]) for _, _, data in found) == [60, 61, 62]


async def test_aborted_records_are_not_shown_and_resuming_skips_them(open_site: Site) -> None:
    await make_topic(open_site, "transactions")
    settings = {**open_site.cluster.client_properties, "transactional.id": "console"}
    async with Producer(config=settings) as producer:
        await producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            for _ in range(3):
                await producer.send("transactions", str(number).encode(), partition=0)
            await (producer.commit_transaction() if number % 2 else producer.abort_transaction())
    path = await own_records(open_site, "transactions", "?from=earliest")
    seen: list[int] = []
    last_id: str | None = None
    for count in (1, 3, 1, 4, 6):
        found = await events_of(open_site, path, last_id, count)
        seen += [int(data["value"]["text"]) for _, _, data in found]
        last_id = found[-1][0]
    assert seen == [number for number in (1, 3, 5, 7, 9) for _ in range(3)]
    path = await own_records(
        open_site, "transactions", "?from=earliest&isolation=read_uncommitted&until_end=true"
    )
    *records, _ = await lines_of(open_site, path)
    assert len(records) == 30


async def test_a_wrong_id_is_refused(open_site: Site) -> None:
    await make_topic(open_site, "refused")
    path = await own_records(open_site, "refused")
    headers = {"Accept": "text/event-stream", "Last-Event-ID": '{"other-0": 1}'}
    async with open_request(open_site, "GET", path, headers=headers) as answer:
        assert answer.status == 422


async def test_a_slow_reader_delays_no_other_one(open_site: Site) -> None:
    """One reads nothing for as long as the others read everything, then it gets all."""
    await make_topic(open_site, "slow")
    async with Producer(config=open_site.cluster.client_properties) as producer:
        sent = [producer.send_nowait("slow", b"x" * 10_000, partition=0) for _ in range(2_000)]
        for each in sent:
            await each
    path = await own_records(open_site, "slow", "?from=earliest&until_end=true")
    async with open_request(open_site, "GET", path) as slow:
        assert slow.status == 200
        others = await asyncio.gather(*(lines_of(open_site, path) for _ in range(3)))
        assert [len(each) for each in others] == [2_001] * 3
        assert len([line async for line in slow.content]) == 2_001


async def test_reading_and_writing_need_rights(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("a-records", 1)])
    cluster_id = await secure_site.cluster_id(basic("alice"))
    own = f"/api/v1/clusters/{cluster_id}/topics/a-records/records?from=earliest&until_end=true"
    v3 = f"/v3/clusters/{cluster_id}/topics/a-records/records"
    one = b'{"value": {"type": "STRING", "data": "x"}}'
    for user, status in (("bob", 403), ("alice", 200)):
        headers = {**basic(user), "Content-Type": "application/json"}
        async with open_request(secure_site, "POST", v3, data=one, headers=headers) as answer:
            assert answer.status == status
        async with open_request(secure_site, "GET", own, headers=basic(user)) as answer:
            assert answer.status == status


async def test_a_stream_ends_with_its_session(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("a-live", 1)])

    async def logged_in() -> Any:
        body = {"username": "alice", "password": "a-password-of-users"}
        answer = await secure_site.ask("/api/v1/session", method="POST", body=body)
        return answer if answer.status == 200 else None

    answer = await until_async(logged_in, what="a session")
    [(name, value)] = answer.cookies.items()
    cookie = {"Cookie": f"{name}={value}"}
    path = f"/api/v1/clusters/{answer.document['cluster_id']}/topics/a-live/records"
    async with open_request(secure_site, "GET", path, headers=cookie) as stream:
        assert stream.status == 200
        token = {"X-Moldau-Request-Token": answer.document["request_token"]}
        ended = await secure_site.ask("/api/v1/session", {**cookie, **token}, method="DELETE")
        assert ended.status == 204
        lines = [json.loads(line) async for line in stream.content if line.strip()]
    assert lines[-1]["problem"]["status"] == 401
