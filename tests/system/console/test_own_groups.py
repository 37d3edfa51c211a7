"""Groups through the console's own resources, at a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.client import (
    Admin,
    CommittedOffset,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from tests.kit.waiting import until_async
from tests.system.console.asking import ask_own, look_anew, name_in_path, own
from tests.system.console.site import Answer, Site, basic
from tests.unit.console.command_lines import parsed

ODD_NAMES = ["a b", "x/y", "...", "%2e", "ü", "-x", "a?b#c", "tab\there"]


async def filled(site: Site, name: str, partitions: int = 2, count: int = 10) -> None:
    """A topic with records in partition 0."""
    async with Admin(config=site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic(name, partitions)])
    async with Producer(config=site.cluster.client_properties) as producer:
        sent = [producer.send_nowait(name, b"v", partition=0) for _ in range(count)]
        await asyncio.gather(*sent)


async def commit(site: Site, group_id: str, name: str, offset: int) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        offsets = {TopicPartition(name, 0): CommittedOffset(offset, metadata="by the test")}
        assert [*(await admin.alter_group_offsets(group_id, offsets)).values()] == [None]


@asynccontextmanager
async def member(site: Site, group_id: str, name: str, protocol: str) -> AsyncIterator[None]:
    """A consumer that has read from a topic, and is in a group."""
    settings = {
        **site.cluster.client_properties,
        "group.id": group_id,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "client.id": "reader",
    }
    async with Consumer(config=settings) as consumer:
        consumer.subscribe([name])
        await consumer.getone()
        await consumer.commit()
        await look_anew(site)
        yield


def group_path(group_id: str, *more: str) -> str:
    return "/".join(("groups", name_in_path(group_id), *more))


async def committed(site: Site, group_id: str, name: str) -> dict[int, int]:
    async with Admin(config=site.cluster.client_properties) as admin:
        found = (await admin.list_group_offsets([group_id]))[group_id]
    assert isinstance(found, dict)
    return {each.partition: at.offset for each, at in found.items() if each.topic == name}


async def reset(site: Site, group_id: str, name: str, to: str, **more: Any) -> Answer:
    topics = [{"topic": name, "partitions": None}]
    body = {"to": to, "topics": topics, "dry_run": False, **more}
    return await ask_own(site, group_path(group_id, "reset"), method="POST", body=body)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_a_member(open_site: Site, protocol: str) -> None:
    topic, group_id = f"read-{protocol}", f"of {protocol}"
    await filled(open_site, topic)
    async with member(open_site, group_id, topic, protocol):
        shown = await own(open_site, group_path(group_id))
        [row] = (await own(open_site, f"groups?q={name_in_path(group_id)}"))["data"]
        topic_groups = (await own(open_site, f"topics/{topic}"))["groups"]
        refused = await reset(open_site, group_id, topic, "earliest")
        planned = await reset(open_site, group_id, topic, "earliest", dry_run=True)
        deleted = await ask_own(open_site, group_path(group_id), method="DELETE")
    assert row == {
        "group_id": group_id,
        "type": protocol,
        "protocol": "consumer",
        "state": "Stable",
        "coordinator": 1,
        "members": 1,
        "topics": 1,
        "lag": sum(each["lag"] or 0 for each in shown["offsets"]),
    }
    assert (shown["type"], shown["state"], shown["is_supported"]) == (protocol, "Stable", True)
    [one] = shown["members"]
    assert one["client_id"] == "reader"
    assert one["client_host"].strip("/") == "127.0.0.1"
    assert one["subscribed_topics"] == [topic]
    assert one["assignment"] == [{"topic": topic, "partitions": [0, 1]}]
    is_new = protocol == "consumer"
    assert one["target"] == (one["assignment"] if is_new else None)
    assert (one["member_epoch"] is not None) is is_new
    first, _ = shown["offsets"]
    assert first["member_id"] == one["member_id"]
    assert first["end_offset"] == 10
    assert first["lag"] == 10 - first["committed"]
    assert topic_groups == [
        {
            "group_id": group_id,
            "type": protocol,
            "state": "Stable",
            "members": 1,
            "lag": first["lag"],
        }
    ]
    for answer in (refused, deleted):
        assert (answer.status, answer.document["kafka_error"]) == (409, "NON_EMPTY_GROUP")
    assert planned.status == 200, planned.document


async def test_groups_are_searched_sorted_and_paged(open_site: Site) -> None:
    await filled(open_site, "sorted-groups")
    for group_id, offset in (("sorted-1", 9), ("sorted-2", 2), ("Sorted-3", 5)):
        await commit(open_site, group_id, "sorted-groups", offset)

    async def ids(query: str) -> list[str]:
        return [row["group_id"] for row in (await own(open_site, f"groups?{query}"))["data"]]

    assert await ids("q=SORTED-&sort=lag&order=desc") == ["sorted-2", "Sorted-3", "sorted-1"]
    first = await own(open_site, "groups?q=sorted-&limit=2")
    assert [row["group_id"] for row in first["data"]] == ["Sorted-3", "sorted-1"]
    assert first["total"] == 3
    assert await ids(f"q=sorted-&after={first['next']}") == ["sorted-2"]
    assert await ids("q=sorted-&type=consumer") == []
    assert len(await ids("q=sorted-&type=classic")) == 3
    assert await ids("type=share") == await ids("type=streams") == []


@pytest.mark.parametrize("group_id", ODD_NAMES)
async def test_groups_may_have_odd_names(open_site: Site, group_id: str) -> None:
    if (await ask_own(open_site, "topics/odd-groups")).status == 404:
        await filled(open_site, "odd-groups")
    await commit(open_site, group_id, "odd-groups", 4)
    shown = await ask_own(open_site, group_path(group_id))
    assert shown.document["group_id"] == group_id
    [row] = shown.document["offsets"]
    assert (row["committed"], row["lag"], row["metadata"]) == (4, 6, "by the test")
    answer = await reset(open_site, group_id, "odd-groups", "latest")
    assert answer.status == 200, answer.document
    assert parsed(answer.document["command"]).given["group_ids"] == (group_id,)
    done = await own(open_site, group_path(group_id), method="DELETE")
    assert parsed(done["command"]) == ("groups delete", {"group_ids": (group_id,)})
    assert (await ask_own(open_site, group_path(group_id))).status == 404


@pytest.mark.parametrize(
    ("to", "new"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("offset:3", 3),
        ("offset:99", 10),
        ("by:-2", 2),
        ("by:+100", 10),
        ("timestamp:0", 0),
        ("timestamp:9999999999999", 10),
        ("duration:PT1H", 0),
    ],
)
async def test_offsets_are_reset(open_site: Site, to: str, new: int) -> None:
    group_id, topic = f"to {to}", "resets"
    if (await ask_own(open_site, f"topics/{topic}")).status == 404:
        await filled(open_site, topic, partitions=1)
    await commit(open_site, group_id, topic, 4)
    planned = await reset(open_site, group_id, topic, to, dry_run=True)
    [row] = planned.document["offsets"]
    assert (row["old"], row["new"]) == (4, new)
    assert await committed(open_site, group_id, topic) == {0: 4}
    done = await reset(open_site, group_id, topic, to)
    assert done.document == planned.document
    assert await committed(open_site, group_id, topic) == {0: new}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"to": "offset:-1"}, 422),
        ({"to": "offset:5\n"}, 422),
        ({"to": "duration:P1Y"}, 422),
        ({"topics": []}, 422),
        ({"topics": [{"topic": "absent"}]}, 404),
        ({"topics": [{"topic": "unreset", "partitions": [7]}]}, 404),
        ({"topics": [{"topic": "unreset", "partitions": [-1]}]}, 422),
        ({"topics": [{"topic": "unreset"}, {"topic": "unreset"}]}, 422),
        ({"to": "by:+1", "topics": [{"topic": "unreset", "partitions": [1]}]}, 422),
    ],
)
async def test_resets_that_cannot_be(open_site: Site, body: dict[str, Any], status: int) -> None:
    if (await ask_own(open_site, "topics/unreset")).status == 404:
        await filled(open_site, "unreset")
    await commit(open_site, "unreset", "unreset", 4)
    whole = {"to": "earliest", "topics": [{"topic": "unreset"}], "dry_run": False, **body}
    answer = await ask_own(open_site, "groups/unreset/reset", method="POST", body=whole)
    assert answer.status == status, answer.document
    assert await committed(open_site, "unreset", "unreset") == {0: 4}


async def test_a_group_that_does_not_exist(open_site: Site) -> None:
    await filled(open_site, "without-groups")
    gone = (
        await ask_own(open_site, "groups/absent"),
        await ask_own(open_site, "groups/absent", method="DELETE"),
        await reset(open_site, "absent", "without-groups", "latest"),
    )
    for answer in gone:
        assert (answer.status, answer.document["kafka_error"]) == (404, "GROUP_ID_NOT_FOUND")


async def test_lags_that_were_seen_come_back(open_site: Site) -> None:
    await filled(open_site, "history")
    await commit(open_site, "with-history", "history", 4)
    first = await own(open_site, "groups/with-history/lag-history")
    assert [lag for _, lag in first["points"]] == [6]
    await commit(open_site, "with-history", "history", 9)
    await own(open_site, "groups/with-history")

    async def is_seen() -> bool:
        shown = await own(open_site, "groups/with-history/lag-history")
        return bool(shown["points"][-1][1] == 1)

    await until_async(is_seen, what="the newer lag")
    assert (await own(open_site, "groups/absent/lag-history"))["points"] == []


async def test_people_see_groups_that_they_may_describe(secure_site: Site) -> None:
    await filled(secure_site, "a-read", partitions=1)
    for group_id in ("a-group", "hidden-group"):
        await commit(secure_site, group_id, "a-read", 4)
    alice, bob = basic("alice"), basic("bob")
    rows = (await own(secure_site, "groups", headers=alice))["data"]
    assert [(row["group_id"], row["lag"]) for row in rows] == [("a-group", 6)]
    assert (await own(secure_site, "groups", headers=bob))["data"] == []
    assert (await own(secure_site, "groups/a-group/lag-history", headers=alice))["points"]
    body = {"to": "earliest", "topics": [{"topic": "a-read"}], "dry_run": True}
    for path, more in (
        ("groups/a-group", {}),
        ("groups/a-group", {"method": "DELETE"}),
        ("groups/a-group/lag-history", {}),
        ("groups/a-group/reset", {"method": "POST", "body": body}),
    ):
        answer = await ask_own(secure_site, path, headers=bob, **more)
        assert (answer.status, answer.document["kafka_error"]) == (
            403,
            "GROUP_AUTHORIZATION_FAILED",
        ), path
