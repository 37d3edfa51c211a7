"""Messages on the page: searched, filtered, read on with, and one of them whole."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest

from moldau.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.system.console.site import Answer, Site, basic

BASE_MS = 1_600_000_000_000


async def messages_path(site: Site, topic: str, below: str = "", **query: Any) -> str:
    path = f"/api/v1/clusters/{await site.cluster_id()}/topics/{topic}/messages{below}"
    return f"{path}?{urlencode(query, quote_via=quote)}"


async def ask(site: Site, topic: str, below: str = "", **query: Any) -> Answer:
    return await site.ask(await messages_path(site, topic, below, **query))


async def bytes_of(site: Site, topic: str, **query: Any) -> tuple[int, bytes]:
    """The status and the bytes of a part of one record."""
    path = await messages_path(site, topic, "/one", **query)
    async with aiohttp.ClientSession() as session, session.get(site.origin + path) as answer:
        return answer.status, await answer.read()


async def page_of(site: Site, topic: str, **query: Any) -> dict[str, Any]:
    answer = await ask(site, topic, **query)
    assert answer.status == 200, answer.document
    found: dict[str, Any] = answer.document
    return found


def places(page: dict[str, Any]) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in page["records"]]


def values(page: dict[str, Any]) -> list[str]:
    return [each["value"]["text"] for each in page["records"]]


async def make_topic(site: Site, name: str, partitions: int = 1, **configs: str) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        kept = {"retention.ms": "-1", **configs}  # times of records are old
        await admin.create_topics([NewTopic(name, partitions, configs=kept)])


async def fill(site: Site, name: str, records: list[tuple[int, bytes, int]]) -> None:
    """Records of a partition, a value and a time."""
    async with Producer(config=site.cluster.client_properties) as producer:
        sent = [
            producer.send_nowait(name, value, partition=partition, timestamp_ms=BASE_MS + time)
            for partition, value, time in records
        ]
        for each in sent:
            await each


async def test_newest_and_oldest_over_all_partitions(open_site: Site) -> None:
    await make_topic(open_site, "spread", 3)
    await fill(open_site, "spread", [(number % 3, b"%d" % number, number) for number in range(90)])
    newest = await page_of(open_site, "spread", **{"from": "last:5"})
    assert values(newest) == ["89", "88", "87", "86", "85"]
    assert newest["read"]["stopped_by"] == "limit"
    more = await page_of(open_site, "spread", **{"from": "last:5", "after": newest["next"]})
    assert values(more) == ["84", "83", "82", "81", "80"]
    oldest = await page_of(open_site, "spread", **{"from": "earliest", "limit": 4})
    assert values(oldest) == ["0", "1", "2", "3"]
    more = await page_of(
        open_site, "spread", **{"from": "earliest", "limit": 4, "after": oldest["next"]}
    )
    assert values(more) == ["4", "5", "6", "7"]


async def test_reading_on_ends_with_all_records_shown_once(open_site: Site) -> None:
    await make_topic(open_site, "paged", 2)
    await fill(open_site, "paged", [(number % 2, b"%d" % number, 0) for number in range(50)])
    for begin in ("earliest", "last:7"):
        found: list[str] = []
        after: dict[str, Any] = {}
        while True:
            page = await page_of(open_site, "paged", **{"from": begin, "limit": 7, **after})
            found += values(page)
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert sorted(found, key=int) == [str(number) for number in range(50)]
        assert (page["read"]["is_complete"], page["read"]["stopped_by"]) == (True, "end")


async def test_places_to_begin(open_site: Site) -> None:
    await make_topic(open_site, "places", 2)
    await fill(open_site, "places", [(number % 2, b"%d" % number, number) for number in range(20)])
    for begin, expected in {
        "offset:8": ["16", "17", "18", "19"],
        f"timestamp:{BASE_MS + 17}": ["17", "18", "19"],
        f"timestamp:{BASE_MS + 100}": [],
        "latest": [],
        "last:2": ["19", "18"],
        "offset:1000": [],
    }.items():
        assert values(await page_of(open_site, "places", **{"from": begin})) == expected
    page = await page_of(open_site, "places", **{"from": "earliest", "partition": "1", "limit": 2})
    assert places(page) == [(1, 0), (1, 1)]


async def test_filters_are_those_of_the_command(open_site: Site) -> None:
    await make_topic(open_site, "filtered")
    async with Producer(config=open_site.cluster.client_properties) as producer:
        for number in range(40):
            await producer.send(
                "filtered",
                json.dumps({"id": number, "user": {"name": f"u{number % 4}"}}).encode(),
                key=f"k{number % 5}".encode(),
                headers=[("source", b"odd" if number % 2 else b"even")],
            )
    found = await page_of(
        open_site, "filtered", **{"from": "earliest", "where": "value.user.name == 'u1'"}
    )
    assert [json.loads(each)["id"] for each in values(found)] == list(range(1, 40, 4))
    assert found["columns"] == ["id", "user.name"]
    assert found["read"]["records"] == 40
    both = {"where": "value.id > 10", "key": "k3", "grep": "odd"}
    found = await page_of(open_site, "filtered", **{"from": "last:50", **both})
    assert [json.loads(each)["id"] for each in values(found)] == [33, 23, 13]
    wrong = await ask(open_site, "filtered", where="value.id >")
    assert wrong.status == 422
    assert "where:" in wrong.document["detail"]
    assert "character" in wrong.document["detail"]


async def test_search_stops_at_its_budget_and_goes_on_from_there(open_site: Site) -> None:
    await make_topic(open_site, "large", 2)
    await fill(open_site, "large", [(number % 2, b"%d" % number, number) for number in range(900)])
    for begin in ("earliest", "last:5"):
        found: list[str] = []
        after: dict[str, Any] = {}
        stops: list[str] = []
        reads = 0
        while True:
            page = await page_of(
                open_site,
                "large",
                **{"from": begin, "grep": "77", "max_records": 100, "limit": 5, **after},
            )
            assert page["read"]["records"] <= 100
            found, reads = found + values(page), reads + page["read"]["records"]
            stops.append(page["read"]["stopped_by"])
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        expected = [str(each) for each in range(900) if "77" in str(each)]
        assert sorted(found, key=int) == expected
        assert "records" in stops
        assert stops[-1] == "end"
        assert reads >= 900


async def test_byte_and_time_budgets(open_site: Site) -> None:
    await make_topic(open_site, "heavy", 1)
    await fill(open_site, "heavy", [(0, b"x" * 1_000, number) for number in range(2_000)])
    page = await page_of(
        open_site, "heavy", **{"from": "earliest", "grep": "none", "max_bytes": 10_000}
    )
    assert page["read"]["stopped_by"] == "bytes"
    assert page["read"]["records"] < 2_000
    assert page["records"] == []
    assert page["next"] is not None
    refused = await ask(open_site, "heavy", max_records=0)
    assert refused.status == 422


async def test_large_values_are_cut_and_had_whole(open_site: Site) -> None:
    await make_topic(open_site, "big")
    value = b'{"text": "' + b"y" * 900_000 + b'"}'
    await fill(open_site, "big", [(0, value, 1)])
    (shown,) = (await page_of(open_site, "big"))["records"]
    assert shown["value"]["is_truncated"] is True
    assert shown["value"]["size_bytes"] == shown["value_size"] == len(value)
    assert len(shown["value"]["text"]) == 64 << 10
    whole = (await ask(open_site, "big", "/one", partition=0, offset=0)).document
    assert whole["value"] == {
        "encoding": "json",
        "text": value.decode(),
        "size_bytes": len(value),
        "is_truncated": False,
    }
    raw = await ask(open_site, "big", "/one", partition=0, offset=0, part="value")
    assert raw.document == value.decode()
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert raw.headers["Content-Disposition"] == 'attachment; filename="big-0-0-value"'


async def test_any_bytes_and_markup_are_shown(open_site: Site) -> None:
    await make_topic(open_site, "odd")
    markup = "<script>alert(1)</script>"
    async with Producer(config=open_site.cluster.client_properties) as producer:
        await producer.send("odd", b"\xff\xfe\x00", key=b"\x80", headers=[(markup, b"\xff")])
        await producer.send("odd", markup.encode(), key=markup.encode(), headers=[("h", None)])
        await producer.send("odd", None, key=b"gone")
        await producer.send("odd", b"", key=b"")
        await producer.send("odd", b'{"cut": [1, 2')
    page = await page_of(open_site, "odd", **{"from": "earliest"})
    encodings = [each["value"] and each["value"]["encoding"] for each in page["records"]]
    assert encodings == ["base64", "utf-8", None, "utf-8", "utf-8"]
    assert page["records"][0]["headers"][0]["name"] == markup
    assert page["records"][1]["key"]["text"] == page["records"][1]["value"]["text"] == markup
    assert page["records"][3]["value"]["size_bytes"] == 0
    header = await ask(open_site, "odd", "/one", partition=0, offset=1, part="header:h")
    assert header.status == 404
    name = f"header:{markup}"
    found = await bytes_of(open_site, "odd", partition=0, offset=0, part=name)
    assert found == (200, b"\xff")
    found = await bytes_of(open_site, "odd", partition=0, offset=0, part="value")
    assert found == (200, b"\xff\xfe\x00")
    missing = await ask(open_site, "odd", "/one", partition=0, offset=0, part="body")
    assert missing.status == 422


@pytest.mark.parametrize("offset", [5, 2**63 - 1])
async def test_record_that_does_not_exist(open_site: Site, offset: int) -> None:
    name = f"short-{offset}"
    await make_topic(open_site, name)
    await fill(open_site, name, [(0, b"x", 1)])
    answer = await ask(open_site, name, "/one", partition=0, offset=offset)
    assert answer.status == 404
    assert str(offset) in answer.document["detail"]
    assert (await ask(open_site, name, "/one", partition=1, offset=0)).status == 422


async def test_transactions_are_shown_as_asked(open_site: Site) -> None:
    await make_topic(open_site, "transacted")
    config = {**open_site.cluster.client_properties, "transactional.id": "shown"}
    async with Producer(config=config) as producer:
        async with producer.transaction():
            await producer.send("transacted", b"committed")
        producer.begin_transaction()
        await producer.send("transacted", b"aborted")
        await producer.abort_transaction()
    everything = await page_of(open_site, "transacted", **{"from": "earliest"})
    assert values(everything) == ["committed", "aborted"]
    assert everything["next"] is None
    committed = await page_of(
        open_site, "transacted", **{"from": "last:50", "isolation": "read_committed"}
    )
    assert values(committed) == ["committed"]
    marker = await ask(open_site, "transacted", "/one", partition=0, offset=1)
    assert marker.status == 404


async def test_commits_of_groups_are_readable(open_site: Site) -> None:
    await make_topic(open_site, "committed")
    await fill(open_site, "committed", [(0, b"x", 1)])
    config = {
        **open_site.cluster.client_properties,
        "group.id": "readers<b>",
        "auto.offset.reset": "earliest",
    }
    async with Consumer(config=config) as consumer:
        consumer.subscribe(["committed"])
        await consumer.getone()
        await consumer.commit()
    page = await page_of(open_site, "__consumer_offsets", **{"from": "last:100", "limit": 100})
    keys = [
        json.loads(each["key"]["text"])["keyData"]
        for each in page["records"]
        if each["key"]["encoding"] == "record" and "OffsetCommitKey" in each["key"]["text"]
    ]
    assert {"group": "readers<b>", "topic": "committed", "partition": 0} in keys


async def test_deleted_records_are_passed_over(open_site: Site) -> None:
    await make_topic(open_site, "deleted")
    await fill(open_site, "deleted", [(0, b"%d" % number, number) for number in range(10)])
    page = await page_of(open_site, "deleted", **{"from": "earliest", "limit": 2})
    async with Admin(config=open_site.cluster.client_properties) as admin:
        await admin.delete_records({TopicPartition("deleted", 0): 6})
    page = await page_of(
        open_site, "deleted", **{"from": "earliest", "limit": 2, "after": page["next"]}
    )
    assert values(page) == ["6", "7"]


async def test_other_topics_and_odd_cursors_are_refused(open_site: Site) -> None:
    assert (await ask(open_site, "mistyped")).status == 404
    await make_topic(open_site, "strict")
    for query in (
        {"after": "x"},
        {"partition": "7"},
        {"partition": "x"},
        {"limit": "1001"},
        {"from": "last:x"},
        {"isolation": "none"},
        {"value_format": "xml"},
    ):
        assert (await ask(open_site, "strict", **query)).status == 422, query


async def test_who_may_not_read_gets_nothing(secure_site: Site) -> None:
    alice, bob = basic("alice"), basic("bob")
    await make_topic(secure_site, "a-messages")
    await fill(secure_site, "a-messages", [(0, b"x", 1)])
    cluster_id = await secure_site.cluster_id(alice)
    path = f"/api/v1/clusters/{cluster_id}/topics/a-messages/messages"
    assert values((await secure_site.ask(path, alice)).document) == ["x"]
    for below in ("", "/one?partition=0&offset=0"):
        refused = await secure_site.ask(path + below, bob)
        assert refused.status == 403
        assert refused.document["kafka_error"] == "TOPIC_AUTHORIZATION_FAILED"
