"""The new group protocol (KIP-848) with librdkafka against a node: joining and leaving, moving
between the protocols, a killed coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster
from tests.kit.waiting import until

pytestmark = pytest.mark.system

PARTITIONS = 6
CONFIG = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")
    admin = AdminClient(quiet(cluster))
    for done in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        done.result(30)
    return str(name)


def quiet(cluster: Cluster) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.bootstrap_server, "log_level": 0}


def produce(cluster: Cluster, topic: str, values: Sequence[int]) -> None:
    producer = Producer(quiet(cluster))
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % PARTITIONS)
    assert producer.flush(30) == 0


class Reader:
    """A consumer, what it has read, and what was taken from it."""

    def __init__(self, stack: ExitStack, cluster: Cluster, topic: str, **config: Any) -> None:
        self.read: list[int] = []
        self.lost: list[TopicPartition] = []
        self.consumer = Consumer(
            {
                **quiet(cluster),
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        self.is_open = True
        stack.callback(self.close)
        self.consumer.subscribe([topic], on_revoke=self._revoked, on_lost=self._lost)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        positions = [each for each in consumer.position(partitions) if each.offset >= 0]
        if positions:
            consumer.commit(offsets=positions, asynchronous=False)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += partitions
        consumer.incremental_unassign(partitions)

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.read.append(int(message.value()))

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.consumer.close()


def new(stack: ExitStack, cluster: Cluster, topic: str, **config: Any) -> Reader:
    return Reader(stack, cluster, topic, group_protocol="consumer", **config)


def classic(stack: ExitStack, cluster: Cluster, topic: str) -> Reader:
    return Reader(
        stack, cluster, topic, partition_assignment_strategy="cooperative-sticky",
        session_timeout_ms=6000, heartbeat_interval_ms=200,
    )  # fmt: skip


def until_polled(readers: Sequence[Reader], condition: Callable[[], bool], what: str) -> None:
    """Poll all readers until the condition holds."""

    def holds() -> bool:
        for reader in readers:
            reader.poll()
        return condition()

    until(holds, what=what, deadline_s=60)


def until_shared(readers: Sequence[Reader]) -> None:
    """Every partition has one reader, and no two readers differ by more than one."""

    def shared() -> bool:
        held = [index for reader in readers for index in reader.partitions]
        sizes = [len(reader.partitions) for reader in readers]
        return sorted(held) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    until_polled(readers, shared, f"{len(readers)} readers share the partitions")


def group_type(cluster: Cluster, group_id: str) -> Any:
    admin = AdminClient(quiet(cluster))
    listed = admin.list_consumer_groups().result(30).valid
    return {each.group_id: each.type for each in listed}[group_id]


def test_members_come_and_go_and_every_record_is_read_once(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        readers = [new(stack, cluster, topic)]
        produce(cluster, topic, range(120))
        until_polled(readers, lambda: len(readers[0].read) == 120, "the first has read everything")
        readers += [new(stack, cluster, topic) for _ in range(2)]
        until_shared(readers)
        produce(cluster, topic, range(120, 240))
        until_polled(readers, lambda: sum(len(each.read) for each in readers) >= 240, "all read")
        assert all(each.read for each in readers)
        gone, *rest = readers
        gone.poll()
        gone.close()
        until_shared(rest)
        produce(cluster, topic, range(240, 360))
        until_polled(
            rest, lambda: sum(len(each.read) for each in readers) >= 360, "the others read on"
        )
        assert sorted(value for each in readers for value in each.read) == list(range(360))
        assert not any(each.lost for each in readers)


def test_static_members_and_expressions(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        first = new(stack, cluster, topic, group_instance_id="one")
        second = new(stack, cluster, topic, group_instance_id="two")
        until_shared([first, second])
        held = first.partitions
        first.close()
        back = new(stack, cluster, topic, group_instance_id="one")
        until_shared([back, second])
        assert back.partitions == held
        pattern = new(stack, cluster, topic, group_id=f"{topic}-by-pattern")
        pattern.consumer.subscribe([f"^{topic[:12]}.*"])
        until_polled(
            [pattern], lambda: len(pattern.partitions) == PARTITIONS, "the pattern is found"
        )


def test_a_group_moves_to_the_new_protocol_and_back(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        old = [classic(stack, cluster, topic) for _ in range(2)]
        until_shared(old)
        produce(cluster, topic, range(60))
        until_polled(
            old, lambda: sum(len(each.read) for each in old) >= 60, "the classic ones read"
        )
        assert group_type(cluster, topic) == ConsumerGroupType.CLASSIC
        fresh = new(stack, cluster, topic)
        until_shared([*old, fresh])
        assert group_type(cluster, topic) == ConsumerGroupType.CONSUMER
        for each in old:
            each.poll()
            each.close()
        until_shared([fresh])
        produce(cluster, topic, range(60, 120))
        until_polled([fresh], lambda: len({*fresh.read}) >= 60, "the new one reads on")
        back = classic(stack, cluster, topic)
        until_shared([fresh, back])
        fresh.poll()
        fresh.close()
        until_shared([back])
        assert group_type(cluster, topic) == ConsumerGroupType.CLASSIC
        produce(cluster, topic, range(120, 180))
        read = lambda: {value for each in (*old, fresh, back) for value in each.read}  # noqa: E731
        until_polled([back], lambda: read() == set(range(180)), "nothing is left out")


def test_a_killed_coordinator_costs_no_member_a_partition(cluster: Cluster, topic: str) -> None:
    with ExitStack() as stack:
        readers = [new(stack, cluster, topic) for _ in range(2)]
        until_shared(readers)
        held = [each.partitions for each in readers]
        produce(cluster, topic, range(60))
        until_polled(readers, lambda: sum(len(each.read) for each in readers) >= 60, "all read")
        cluster.kill()
        cluster.restart()
        produce(cluster, topic, range(60, 120))
        until_polled(
            readers, lambda: sum(len(each.read) for each in readers) >= 120, "they read on"
        )
        assert [each.partitions for each in readers] == held
        assert not any(each.lost for each in readers)
        assert sorted(value for each in readers for value in each.read) == list(range(120))
