"""Transactions and producers at a node's console, and what ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.client import Admin, NewTopic, Producer, ProducerFenced
from moldau.testing import Cluster
from tests.interop.raw.hanging import PRODUCER_ID, VERIFICATION, begin_behind_the_coordinator
from tests.kit.waiting import until_async
from tests.system.console.asking import ask_own, own
from tests.system.console.site import CONSOLE, Site, basic, http_address

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def unverified_site() -> Iterator[Site]:
    """A node that takes records of transactions that no coordinator knows, where they are soon too
    old.
    """
    config = CONSOLE | {VERIFICATION: "false", "transaction.max.timeout.ms": "1"}
    with Cluster(config=config) as cluster:
        yield Site(cluster, http_address(cluster))


@asynccontextmanager
async def open_transaction(
    site: Site, transactional_id: str
) -> AsyncIterator[Producer[bytes, bytes]]:
    """A producer that has begun a transaction."""
    made: Producer[bytes, bytes] = Producer(
        site.cluster.bootstrap_server, transactional_id=transactional_id
    )
    async with made as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        yield producer


async def listed(site: Site, query: str = "", **more: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await own(site, f"transactions?{query}", **more))["data"]
    return rows


async def make_topic(site: Site, name: str) -> None:
    async with Admin(config=site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic(name, partition_count=2)])


async def test_a_transaction_while_it_is_open_and_after(open_site: Site) -> None:
    await make_topic(open_site, "lives")
    async with open_transaction(open_site, "it's mine") as producer:
        await producer.send("lives", b"v", partition=1)
        await producer.flush()
        [row] = await listed(open_site, "q=MINE&state=Ongoing")
        assert row["transactional_id"] == "it's mine"
        assert (row["state"], row["coordinator"], row["is_hanging"]) == ("Ongoing", 1, False)
        assert row["partitions"] == [{"topic": "lives", "partition": 1, "start_offset": None}]
        assert row["age_ms"] >= 0
        assert row["start_time_ms"] is not None
        assert row["timeout_ms"] > 0
        assert await listed(open_site, f"q=mine&min_age_ms={HOUR_MS}") == []
        [own_row] = (await own(open_site, "topics/lives/producers?partition=1"))["data"]
        assert own_row["producer_id"] == row["producer_id"]
        assert own_row["transaction_start_offset"] == 0
        await producer.commit_transaction()
        [row] = await listed(open_site, "q=mine&sort=age_ms&order=desc")
        assert row["state"] in ("PrepareCommit", "CompleteCommit")
    after = await own(open_site, "topics/lives/producers")
    assert (after["total"], after["unanswered"]) == (1, [])


async def test_lists_go_on_from_page_to_page(open_site: Site) -> None:
    names = [f"page-{index}" for index in range(5)]
    for name in names:
        async with open_transaction(open_site, name) as producer:
            await producer.abort_transaction()
    seen: list[str] = []
    after = ""
    for _ in range(3):
        page = await own(open_site, f"transactions?q=page-&limit=2&sort=state{after}")
        assert page["total"] == 5
        seen += [row["transactional_id"] for row in page["data"]]
        after = f"&after={page['next']}"
    assert (seen, page["next"]) == (names, None)


async def test_ending_a_transaction_fences_its_producer(open_site: Site) -> None:
    await make_topic(open_site, "ends")
    async with open_transaction(open_site, "ends") as producer:
        await producer.send("ends", b"v", partition=0)
        await producer.flush()
        body = {"transactional_id": "ends"}
        answer = await ask_own(open_site, "transactions/abort", method="POST", body=body)
        assert answer.status == 200, answer.document
        assert answer.document == {"command": "moldau transactions force-terminate ends"}
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()


async def test_an_abort_never_makes_an_id(open_site: Site) -> None:
    body = {"transactional_id": "absent"}
    answer = await ask_own(open_site, "transactions/abort", method="POST", body=body)
    assert answer.status == 404
    assert answer.document["kafka_error"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert await listed(open_site, "q=absent") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topic": "a", "partition": 0},
        {"topic": "a", "partition": 0, "start_offset": 0, "transactional_id": "x"},
        {"topic": "a", "partition": -1, "start_offset": 0},
        {"transactional_id": ""},
    ],
)
async def test_an_abort_of_what_cannot_be(open_site: Site, body: dict[str, object]) -> None:
    answer = await ask_own(open_site, "transactions/abort", method="POST", body=body)
    assert answer.status == 422, answer.document


async def test_what_hangs_is_found_and_aborted(unverified_site: Site) -> None:
    site = unverified_site
    await make_topic(site, "hangs")
    await begin_behind_the_coordinator(site.cluster.bootstrap_server, "hangs")
    found: list[dict[str, Any]] = []

    async def is_found() -> bool:
        document = await own(site, "transactions?sort=age_ms&order=desc&min_age_ms=2")
        assert document["not_searched"] == 0
        found[:] = document["data"]
        return bool(found)

    await until_async(is_found, what="a transaction to be too old")
    [row] = found
    assert (row["is_hanging"], row["state"], row["transactional_id"]) == (True, "Ongoing", "")
    assert (row["producer_id"], row["coordinator"]) == (PRODUCER_ID, None)
    assert row["age_ms"] >= 2
    [place] = row["partitions"]
    assert place == {"topic": "hangs", "partition": 1, "start_offset": 0}
    late = {**place, "start_offset": 1}
    refused = await ask_own(site, "transactions/abort", method="POST", body=late)
    assert refused.status == 409
    answer = await ask_own(site, "transactions/abort", method="POST", body=place)
    assert answer.status == 200, answer.document
    command = "moldau transactions abort --start-offset 0 hangs:1"
    assert answer.document == {"command": command}
    assert await listed(site) == []


async def test_the_cluster_decides_who_may(secure_site: Site) -> None:
    await make_topic(secure_site, "a-secret")
    alice, bob = basic("alice"), basic("bob")
    allowed = await ask_own(secure_site, "topics/a-secret/producers", headers=alice)
    assert (allowed.status, allowed.document["data"]) == (200, [])
    hidden = await ask_own(secure_site, "topics/a-secret/producers", headers=bob)
    assert (hidden.status, hidden.document["kafka_error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    assert await listed(secure_site, headers=bob) == []
    body: dict[str, object] = {"transactional_id": "of-others"}
    refused = await ask_own(
        secure_site, "transactions/abort", method="POST", body=body, headers=bob
    )
    assert refused.status == 403
    assert refused.document["kafka_error"] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
