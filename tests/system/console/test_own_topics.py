"""Topics through the console's own resources, at a node."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    CommittedOffset,
    NewTopic,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from tests.system.console.asking import ask_own, look_anew, own
from tests.system.console.site import Site, basic
from tests.unit.console.command_lines import parsed

HEAVY = "with=sizes,offsets,groups"


async def filled(site: Site, name: str, partitions: int = 2, count: int = 10) -> None:
    """A topic that is configured, with records in partition 0."""
    configs = {"retention.ms": "123456789", "cleanup.policy": "delete"}
    async with Admin(config=site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic(name, partitions, configs=configs)])
    async with Producer(config=site.cluster.client_properties) as producer:
        sent = [producer.send_nowait(name, b"v" * 100, partition=0) for _ in range(count)]
        await asyncio.gather(*sent)
    await look_anew(site)


async def commit(site: Site, group_id: str, name: str, offset: int) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        offsets = {TopicPartition(name, 0): CommittedOffset(offset)}
        assert [*(await admin.alter_group_offsets(group_id, offsets)).values()] == [None]
    await look_anew(site)


async def test_a_row_has_what_was_asked_for(open_site: Site) -> None:
    await filled(open_site, "rows.v1")
    await commit(open_site, "reader of rows", "rows.v1", 4)
    [row] = (await own(open_site, f"topics?names=rows.v1&{HEAVY}"))["data"]
    assert row["size_bytes"] > 1_000
    assert len(row["topic_id"]) == 22
    assert row == {
        "name": "rows.v1",
        "topic_id": row["topic_id"],
        "is_internal": False,
        "partition_count": 2,
        "replication_factor": 1,
        "record_count": 10,
        "size_bytes": row["size_bytes"],
        "retention_ms": 123_456_789,
        "cleanup_policy": "delete",
        "under_replicated": 0,
        "offline": 0,
        "groups": [{"group_id": "reader of rows", "type": "classic", "lag": 6}],
        "rate_records_s": None,
    }
    [row] = (await own(open_site, "topics?names=rows.v1"))["data"]
    assert (row["record_count"], row["size_bytes"], row["groups"]) == (None, None, None)


async def test_topics_are_searched_sorted_and_paged(open_site: Site) -> None:
    for name, count in (("sorted-b", 3), ("sorted-a", 9), ("Sorted-C", 0)):
        await filled(open_site, name, count=count)

    async def names(query: str) -> list[str]:
        return [row["name"] for row in (await own(open_site, f"topics?q=sorted-&{query}"))["data"]]

    assert await names("") == ["Sorted-C", "sorted-a", "sorted-b"]
    assert await names("sort=record_count") == ["Sorted-C", "sorted-b", "sorted-a"]
    assert await names("sort=size_bytes&order=desc") == ["sorted-a", "sorted-b", "Sorted-C"]
    first = await own(open_site, "topics?q=SORTED-&sort=record_count&order=desc&limit=2")
    assert [row["name"] for row in first["data"]] == ["sorted-a", "sorted-b"]
    assert first["total"] == 3
    more = f"after={first['next']}&sort=record_count&order=desc&limit=2"
    assert await names(more) == ["Sorted-C"]
    refused = await ask_own(open_site, f"topics?after={first['next']}")
    assert refused.status == 422


async def test_internal_topics_can_be_left_out(open_site: Site) -> None:
    await filled(open_site, "beside-internal")
    await commit(open_site, "g-internal", "beside-internal", 1)
    shown = {row["name"]: row for row in (await own(open_site, "topics?limit=1000"))["data"]}
    assert shown["__consumer_offsets"]["is_internal"]
    left = (await own(open_site, "topics?limit=1000&internal=false"))["data"]
    assert {row["name"] for row in left} == shown.keys() - {"__consumer_offsets"}
    assert (await own(open_site, "topics?names=absent"))["total"] == 0


async def test_one_topic(open_site: Site) -> None:
    await filled(open_site, "one.topic")
    await commit(open_site, "g-one", "one.topic", 7)
    shown = await own(open_site, "topics/one.topic")
    first, second = shown["partitions"]
    assert first["max_timestamp_ms"] > 1_600_000_000_000
    assert first["size_bytes"] > 1_000
    assert first == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "replicas": [1],
        "isr": [1],
        "elr": [],
        "last_known_elr": [],
        "offline_replicas": [],
        "start_offset": 0,
        "end_offset": 10,
        "last_stable_offset": 10,
        "size_bytes": first["size_bytes"],
        "max_timestamp_ms": first["max_timestamp_ms"],
    }
    assert (second["end_offset"], second["size_bytes"], second["max_timestamp_ms"]) == (0, 0, None)
    assert shown["groups"] == [
        {"group_id": "g-one", "type": "classic", "state": "Empty", "members": 0, "lag": 3}
    ]
    configs = {each["name"]: each for each in shown["configs"]}
    retention = configs["retention.ms"]
    assert (retention["value"], retention["is_default"]) == ("123456789", False)
    assert retention["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert retention["synonyms"][0] == {
        "name": "retention.ms",
        "value": "123456789",
        "source": "DYNAMIC_TOPIC_CONFIG",
    }
    assert retention["documentation"]
    assert configs["segment.bytes"]["is_default"]


async def test_an_open_transaction_shows_in_the_last_stable_offset(open_site: Site) -> None:
    await filled(open_site, "open-transaction", count=2)
    settings = {**open_site.cluster.client_properties, "transactional.id": "of-the-console"}
    async with Producer(config=settings) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send("open-transaction", b"v", partition=0)
        first = (await own(open_site, "topics/open-transaction"))["partitions"][0]
        assert (first["end_offset"], first["last_stable_offset"]) == (3, 2)
        overview = await own(open_site, "overview")
        assert overview["counts"]["transactions_open"] == 1
        await producer.abort_transaction()


async def test_a_topic_that_does_not_exist(open_site: Site) -> None:
    answer = await ask_own(open_site, "topics/absent")
    assert (answer.status, answer.document["kafka_error"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


async def test_records_are_deleted_up_to_an_offset(open_site: Site) -> None:
    await filled(open_site, "cut")
    body = {"offsets": [{"partition": 0, "before_offset": 4}]}
    done = await own(open_site, "topics/cut/delete-records", method="POST", body=body)
    assert parsed(done["command"]) == ("records delete", {"places": ("cut:0@4",)})
    async with Admin(config=open_site.cluster.client_properties) as admin:
        at = TopicPartition("cut", 0)
        assert (await admin.list_offsets({at: OffsetSpec.EARLIEST}))[at].offset == 4


@pytest.mark.parametrize(
    ("offsets", "status"),
    [
        ([], 422),
        ([{"partition": 0, "before_offset": -1}], 422),
        ([{"partition": 0, "before_offset": 11}], 422),
        ([{"partition": 0, "before_offset": 1}, {"partition": 0, "before_offset": 2}], 422),
        ([{"partition": 9, "before_offset": 1}], 404),
    ],
)
async def test_records_that_cannot_be_deleted(
    open_site: Site, offsets: list[dict[str, int]], status: int
) -> None:
    if (await ask_own(open_site, "topics/uncut")).status == 404:
        await filled(open_site, "uncut")
    answer = await ask_own(
        open_site, "topics/uncut/delete-records", method="POST", body={"offsets": offsets}
    )
    assert answer.status == status, answer.document
    assert (await own(open_site, "topics/uncut"))["partitions"][0]["start_offset"] == 0


async def test_people_see_what_they_may_describe(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("a-of-alice", 1), NewTopic("hidden", 1)])
    alice, bob = basic("alice"), basic("bob")
    for person in (alice, bob):
        await look_anew(secure_site, person)
    shown = await own(secure_site, f"topics?{HEAVY}", headers=alice)
    [row] = shown["data"]
    assert (row["name"], row["record_count"]) == ("a-of-alice", 0)
    assert row["size_bytes"] is None, "sizes need Describe on the cluster"
    assert row["retention_ms"] == 604_800_000
    assert (await own(secure_site, f"topics?{HEAVY}", headers=bob))["data"] == []
    topic = await own(secure_site, "topics/a-of-alice", headers=alice)
    assert topic["partitions"][0]["size_bytes"] is None
    assert topic["configs"]
    for name in ("hidden", "a-of-alice"):
        answer = await ask_own(secure_site, f"topics/{name}", headers=bob)
        assert (answer.status, answer.document["kafka_error"]) == (
            403,
            "TOPIC_AUTHORIZATION_FAILED",
        )
    body = {"offsets": [{"partition": 0, "before_offset": 0}]}
    path = "topics/hidden/delete-records"
    refused = await ask_own(secure_site, path, headers=alice, method="POST", body=body)
    assert refused.status == 403


async def test_configurations_that_may_not_be_seen_hide_no_others(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("b-described", 1), NewTopic("b-configured", 1)])
        await admin.create_acls(
            [
                AclBinding(AclResourceType.TOPIC, name, "User:carol", operation)
                for name, operation in (
                    ("b-described", AclOperation.DESCRIBE),
                    ("b-configured", AclOperation.DESCRIBE),
                    ("b-configured", AclOperation.DESCRIBE_CONFIGS),
                )
            ]
        )
    carol = basic("carol")
    await look_anew(secure_site, carol)
    rows = (await own(secure_site, "topics", headers=carol))["data"]
    assert {row["name"]: row["cleanup_policy"] for row in rows} == {
        "b-configured": "delete",
        "b-described": None,
    }
