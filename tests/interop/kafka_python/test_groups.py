"""kafka-python: consumer groups with each of its assignors, and its admin client's view of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.admin import MemberToRemove, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import GroupSubscribedToTopicError, NoError, NonEmptyGroupError

from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(300)

WAIT_S = 90.0
POLL_MS = 1000
PARTITIONS = 4
ASSIGNORS = [
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
    CooperativeStickyAssignor,
]


@contextmanager
def in_group(bootstrap: str, group: str, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        metadata_max_age_ms=1000,
        **config,
    )
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def admin(trio: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=trio.split(","))
    yield client
    client.close()


def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","))
    try:
        futures = [
            producer.send(topic, value, partition=number % PARTITIONS)
            for number, value in enumerate(values)
        ]
        for future in futures:
            future.get(WAIT_S)
    finally:
        producer.close(WAIT_S)


class Polling:
    """One consumer, polled by its own thread while others are, as its users do: a poll that
    ends while the group waits for another member makes this client join once more.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.values: list[bytes] = []
        self.assignment: set[TopicPartition] = set()
        self._consumer = consumer
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_done.is_set():
            for records in self._consumer.poll(timeout_ms=POLL_MS).values():
                self.values.extend(record.value for record in records)
            self.assignment = self._consumer.assignment()

    def finish(self) -> None:
        """After the poll that is under way."""
        self._is_done.set()
        self._thread.join()


@contextmanager
def polling(*consumers: KafkaConsumer) -> Iterator[list[Polling]]:
    polls = [Polling(consumer) for consumer in consumers]
    try:
        yield polls
    finally:
        for each in polls:
            each.finish()


def read(count: int, *consumers: KafkaConsumer) -> list[bytes]:
    """So many values in all, sorted."""
    with polling(*consumers) as polls:
        until(
            lambda: sum(len(each.values) for each in polls) >= count,
            what=f"{count} records",
            deadline_s=WAIT_S,
        )
    return sorted(value for each in polls for value in each.values)


def share(counts: list[int], *consumers: KafkaConsumer) -> None:
    """Wait until the consumers have so many partitions each, all different."""
    with polling(*consumers) as polls:

        def is_shared() -> bool:
            shares = [each.assignment for each in polls]
            return sorted(map(len, shares)) == counts and len(set().union(*shares)) == sum(counts)

        until(is_shared, what=f"{counts} partitions each", deadline_s=WAIT_S)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_two_share_and_one_takes_over(trio: str, trio_topics: TopicMaker, assignor: type) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("kafka-python")
    config = {"partition_assignment_strategy": [assignor]}
    values = [b"%04d" % number for number in range(200)]
    with in_group(trio, group, topic, **config) as first:
        with in_group(trio, group, topic, **config) as second:
            share([2, 2], first, second)
            write(trio, topic, values)
            assert read(200, first, second) == values
            first.commit()
            second.commit()
        share([PARTITIONS], first)
        write(trio, topic, [b"later"] * PARTITIONS)
        assert read(PARTITIONS, first) == [b"later"] * PARTITIONS


def test_a_static_member_comes_back_to_what_it_had(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("kafka-python")
    config = {"session_timeout_ms": 20_000}
    with in_group(trio, group, topic, group_instance_id="one", **config) as first:
        with in_group(trio, group, topic, group_instance_id="two", **config) as second:
            share([2, 2], first, second)
            had = second.assignment()
            generation = first.group_metadata().generation_id
        with in_group(trio, group, topic, group_instance_id="two", **config) as again:
            share([2, 2], first, again)
            assert again.assignment() == had
            assert first.group_metadata().generation_id == generation


def test_the_admin_client_s_view(
    trio: str, trio_topics: TopicMaker, admin: KafkaAdminClient
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("kafka-python")
    write(trio, topic, [b"v"] * 40)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with in_group(trio, group, topic, client_id="watched") as consumer:
        share([PARTITIONS], consumer)
        consumer.commit({first: OffsetAndMetadata(4, "four", -1)})
        described = admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        [member] = described["members"]
        assert member["client_id"] == "watched"
        assert group in [each["group_id"] for each in admin.list_groups(states_filter=["Stable"])]
        assert admin.delete_groups([group]) == {group: NonEmptyGroupError.__name__}
        refusals = admin.delete_group_offsets(group, [first])
        assert refusals == {first: GroupSubscribedToTopicError}
        removed = admin.remove_group_members(group, [MemberToRemove(member["member_id"])])
        assert list(removed.values()) == [NoError]
        # It joins again by itself.
        share([PARTITIONS], consumer)
    assert admin.alter_group_offsets(group, {second: OffsetAndMetadata(2, "", -1)}) == {
        second: NoError
    }
    assert {
        partition: found.offset
        for partition, found in admin.list_group_offsets({group: None})[group].items()
    } == {first: 4, second: 2}
    admin.reset_group_offsets(group, {first: OffsetSpec.LATEST})
    assert admin.list_group_offsets({group: [first]})[group][first].offset == 10
    assert admin.delete_group_offsets(group, [second]) == {second: NoError}
    assert list(admin.list_group_offsets({group: None})[group]) == [first]
    assert admin.delete_groups([group]) == {group: "OK"}
    assert group not in [each["group_id"] for each in admin.list_groups()]
