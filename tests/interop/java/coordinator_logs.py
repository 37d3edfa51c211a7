"""Groups and transactions for both coordinators' logs, and what must be found again by the broker
that loads them.

Owns the names of the groups and transactions. Must not know who serves.
"""

from __future__ import annotations

import asyncio
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.client import Admin
from tests.interop.confluent.clients import Reading, consuming
from tests.interop.drivers import DRIVERS
from tests.interop.samples import Rec
from tests.interop.topics import TopicMaker, wait_decided
from tests.kit.waiting import until

WAIT_S: Final = 60.0
TOPIC: Final = "grouped"
OPEN: Final = "left-open"
PARTITIONS: Final = 3
GROUPS: Final = ("left-classic", "left-consumer", "only-offsets", "in-transactions")

Snapshot = tuple[dict[str, tuple[str, str]], dict[str, dict[tuple[str, int], tuple[int, str]]]]


def fill_coordinators(bootstrap: str) -> None:
    """Groups of both kinds, offsets with and without transactions, and an open transaction."""
    maker = TopicMaker(bootstrap)
    maker.create(TOPIC, partitions=PARTITIONS)
    maker.create(OPEN)
    DRIVERS[0].write(bootstrap, TOPIC, [Rec(b"k", b"v")] * 10)
    for group, protocol in (("left-classic", "classic"), ("left-consumer", "consumer")):
        with consuming(bootstrap, group, **{"group.protocol": protocol}) as consumer:
            consumer.subscribe([TOPIC])
            Reading(consumer).until_shared(TOPIC, [PARTITIONS])
            offsets = [
                TopicPartition(TOPIC, 0, 4, metadata=f"by {group}"),
                TopicPartition(TOPIC, 2, 0),
            ]
            consumer.commit(offsets=offsets, asynchronous=False)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    plain = ConsumerGroupTopicPartitions("only-offsets", [TopicPartition(TOPIC, 1, 5)])
    admin.alter_consumer_group_offsets([plain])["only-offsets"].result(WAIT_S)
    _commit_in_transactions(bootstrap)
    left = _transactional(bootstrap, OPEN)
    left.begin_transaction()
    left.produce(OPEN, b"never")
    assert left.flush(WAIT_S) == 0


def _commit_in_transactions(bootstrap: str) -> None:
    """Offset 3 in one that is committed, 9 in one that is aborted."""
    producer = _transactional(bootstrap, "with-offsets")
    with consuming(bootstrap, "in-transactions") as consumer:
        consumer.subscribe([TOPIC])
        Reading(consumer).until_shared(TOPIC, [PARTITIONS])
        member = consumer.consumer_group_metadata()
        for offset in (3, 9):
            producer.begin_transaction()
            producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], member, WAIT_S)
            if offset == 3:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
    until(
        lambda: transactions(bootstrap)["with-offsets"] == "CompleteAbort",
        what="the markers of the last transaction",
        deadline_s=WAIT_S,
    )


def _transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def snapshot(bootstrap: str) -> Snapshot:
    """State and kind of each group, and its offsets with their metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    states: dict[str, tuple[str, str]] = {}
    offsets: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
    for group in GROUPS:
        described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        states[group] = (described.type.name, described.state.name)
        wanted = [ConsumerGroupTopicPartitions(group)]
        listed = admin.list_consumer_group_offsets(wanted)[group].result(WAIT_S)
        offsets[group] = {
            (each.topic, each.partition): (each.offset, each.metadata or "")
            for each in listed.topic_partitions
        }
    return states, offsets


EXPECTED: Final[Snapshot] = (
    {group: ("CONSUMER" if group == "left-consumer" else "CLASSIC", "EMPTY") for group in GROUPS},
    {
        **{
            group: {(TOPIC, 0): (4, f"by {group}"), (TOPIC, 2): (0, "")}
            for group in ("left-classic", "left-consumer")
        },
        "only-offsets": {(TOPIC, 1): (5, "")},
        "in-transactions": {(TOPIC, 0): (3, "")},
    },
)


def transactions(bootstrap: str) -> dict[str, str]:
    """Transactional id → state."""

    async def ask() -> dict[str, str]:
        async with Admin(bootstrap) as admin:
            return {
                each.transactional_id: str(each.state) for each in await admin.list_transactions()
            }

    return asyncio.run(ask())


def go_on(bootstrap: str, group_offset: int) -> None:
    """What was left open is aborted by the next producer; a group and a transaction go on."""
    producer = _transactional(bootstrap, OPEN)
    producer.begin_transaction()
    producer.produce(OPEN, b"%d" % group_offset)
    producer.commit_transaction(WAIT_S)
    wait_decided(bootstrap, OPEN)
    with consuming(bootstrap, "left-classic") as consumer:
        consumer.subscribe([TOPIC])
        Reading(consumer).until_shared(TOPIC, [PARTITIONS])
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, group_offset)], asynchronous=False)


def after(group_offset: int) -> Snapshot:
    """The snapshot after `go_on`."""
    states, offsets = EXPECTED
    gone_on = {**offsets["left-classic"], (TOPIC, 0): (group_offset, "")}
    return states, {**offsets, "left-classic": gone_on}
