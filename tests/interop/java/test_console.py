"""The console's own resources at an Apache Kafka cluster: the same questions have the same answers,
and what that cluster alone has is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
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
from moldau.console.application import Console
from moldau.console.people import Way
from moldau.console.settings import ConsoleSettings
from tests.interop.java.server import SMALL, KafkaServer
from tests.interop.java.tools import MAIN_CLASSES, JavaTools
from tests.kit.waiting import until_async
from tests.system.console.asking import check_form, name_in_path
from tests.unit.console.asking import ask

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]

MAIN_CLASSES.setdefault(
    "kafka-console-share-consumer", "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
)
SHARES = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
SHARE_MS = 5_000
TOPIC, GROUP = "flights.v1", "of the judge"


class Site:
    """A console beside the cluster."""

    def __init__(self, bootstrap_server: str) -> None:
        self.properties = {"bootstrap.servers": bootstrap_server}
        self.console = Console(ConsoleSettings(Way(self.properties)))
        self._base = ""

    async def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """A good answer, which fits its schema."""
        if not self._base:
            session = (await ask(self.console, "/api/v1/session")).document
            self._base = f"/api/v1/clusters/{session['cluster_id']}/"
        whole = self._base + path
        answer = await ask(self.console, whole, method=method, body=body)
        assert answer.status == 200, answer.document
        check_form(method, whole, answer.status, answer.document)
        return answer.document


@pytest.fixture
async def site(java: JavaTools, tmp_path: Path) -> AsyncIterator[Site]:
    with KafkaServer(java, tmp_path / "kafka", config={**SMALL, **SHARES}) as kafka:
        made = Site(kafka.bootstrap_server)
        await fill(made)
        share = ("--topic", TOPIC, "--group", "shared", "--timeout-ms", str(SHARE_MS))
        server = ("--bootstrap-server", kafka.bootstrap_server)
        await asyncio.to_thread(java.run, "kafka-console-share-consumer", *server, *share)
        yield made
        await made.console.close()


async def fill(site: Site) -> None:
    """Records, and offsets of a group in them."""
    async with Admin(config=site.properties) as admin:
        await admin.create_topics([NewTopic(TOPIC, 2, 1, {"retention.ms": "123456789"})])
    async with Producer(config=site.properties) as producer:
        sent = [producer.send_nowait(TOPIC, b"v", partition=0) for _ in range(10)]
        await asyncio.gather(*sent)
    async with Admin(config=site.properties) as admin:
        offsets = {TopicPartition(TOPIC, 0): CommittedOffset(4)}
        outcome = await admin.alter_group_offsets(GROUP, offsets)
        assert [*outcome.values()] == [None]


async def test_what_is_shown_of_an_apache_kafka_cluster(site: Site) -> None:
    overview = await site.ask("overview")
    assert (overview["health"]["status"], overview["controller_id"]) == ("healthy", 1)
    assert overview["rates"] is None
    [row] = (await site.ask(f"topics?names={TOPIC}&with=sizes,offsets,groups"))["data"]
    assert (row["record_count"], row["retention_ms"]) == (10, 123_456_789)
    assert row["size_bytes"] > 0
    assert row["groups"] == [{"group_id": GROUP, "type": "classic", "lag": 6}]
    topic = await site.ask(f"topics/{TOPIC}")
    first, _ = topic["partitions"]
    assert (first["leader"], first["isr"], first["elr"]) == (1, [1], [])
    assert (first["start_offset"], first["end_offset"], first["last_stable_offset"]) == (0, 10, 10)
    assert first["max_timestamp_ms"] > 1_600_000_000_000
    retention = next(each for each in topic["configs"] if each["name"] == "retention.ms")
    assert (retention["value"], retention["is_default"]) == ("123456789", False)
    assert retention["documentation"]
    assert all("<code>" not in (each["documentation"] or "") for each in topic["configs"])
    assert [each["group_id"] for each in topic["groups"]] == [GROUP]
    broker = await site.ask("brokers/1")
    [directory] = broker["log_directories"]
    assert TOPIC in {each["topic"] for each in directory["partitions"]}
    assert {"root"} <= {each["name"] for each in broker["loggers"]}
    assert next(each for each in broker["configs"] if each["name"] == "node.id")["value"] == "1"
    assert (await site.ask("brokers"))["total"] == 1
    asked = "principal=User:a&operation=READ&resource_type=TOPIC&resource_name=t"
    explained = await site.ask(f"security/explain?{asked}")
    assert explained["is_allowed"]
    assert "no authorizer" in explained["because"]
    assert await site.ask("saved") == {"filters": [], "favourites": []}


async def test_groups_of_an_apache_kafka_cluster(site: Site) -> None:
    path = f"groups/{name_in_path(GROUP)}"
    settings = {
        **site.properties,
        "group.id": "of two protocols",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    async with Consumer(config=settings) as consumer:
        consumer.subscribe([TOPIC])
        await consumer.getone()
        new = await site.ask("groups/of%20two%20protocols")
    assert (new["type"], new["state"], new["assignor"]) == ("consumer", "Stable", "uniform")
    [member] = new["members"]
    assert member["target"] == member["assignment"] == [{"topic": TOPIC, "partitions": [0, 1]}]
    rows = {row["group_id"]: row for row in (await site.ask("groups"))["data"]}
    assert (rows[GROUP]["type"], rows[GROUP]["lag"]) == ("classic", 6)
    assert (rows["shared"]["type"], rows["shared"]["members"]) == ("share", None)
    assert [row["group_id"] for row in (await site.ask("groups?type=share"))["data"]] == ["shared"]
    shared = await site.ask("groups/shared")
    assert not shared["is_supported"]
    assert shared["note"].startswith("Share groups (KIP-932) are listed")
    body = {"to": "by:-3", "topics": [{"topic": TOPIC, "partitions": [0]}], "dry_run": False}
    [planned] = (await site.ask(f"{path}/reset", "POST", body))["offsets"]
    assert (planned["old"], planned["new"]) == (4, 1)
    [shown, *_] = (await site.ask(path))["offsets"]
    assert (shown["committed"], shown["lag"]) == (1, 9)
    assert (await site.ask(f"{path}/lag-history"))["points"][-1][1] == 9
    await site.ask(path, "DELETE")

    async def is_gone() -> bool:
        return GROUP not in {row["group_id"] for row in (await site.ask("groups"))["data"]}

    await until_async(is_gone, what="the group to be gone")


async def test_what_is_changed_in_an_apache_kafka_cluster(site: Site) -> None:
    cut = {"offsets": [{"partition": 0, "before_offset": 3}]}
    await site.ask(f"topics/{TOPIC}/delete-records", "POST", cut)
    assert (await site.ask(f"topics/{TOPIC}"))["partitions"][0]["start_offset"] == 3
    await site.ask("security/users/dora", "PUT", {"password": "x"})
    user = {"name": "dora", "mechanisms": [{"mechanism": "SCRAM-SHA-512", "iterations": 4_096}]}

    async def is_known() -> bool:
        return (await site.ask("security/users"))["data"] == [user]

    await until_async(is_known, what="the user")
    await site.ask("security/users/dora", "DELETE")
    quota = {"entity": {"user": "dora"}, "set": {"producer_byte_rate": 1_000}}
    await site.ask("security/quotas", "PUT", quota)

    async def is_set() -> bool:
        values = {"producer_byte_rate": 1_000}
        return [row["values"] for row in (await site.ask("security/quotas"))["data"]] == [values]

    await until_async(is_set, what="the quota")
    await site.ask("brokers/1/loggers/root", "PUT", {"level": "INFO"})
    levels = {each["name"]: each["level"] for each in (await site.ask("brokers/1"))["loggers"]}
    assert levels["root"] == "INFO"
