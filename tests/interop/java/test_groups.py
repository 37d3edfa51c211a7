"""Apache Kafka's own consumers in groups, and its tools for groups, on three brokers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.interop.confluent.clients import Reading, consumer_config, write_numbers
from tests.interop.java.tools import JavaTools
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 4
COUNT = 400
KINDS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Member:
    """One member by librdkafka that a thread keeps alive while Kafka's tools run."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        self.consumer = Consumer(consumer_config(bootstrap, group, **config))
        self.consumer.subscribe([topic], on_assign=self._given, on_revoke=self._given_up)
        self.reading = Reading(self.consumer)
        #: The partitions it has, and how few it was ever left with: an eager member gives up all
        #: of them at every rebalance, so that only what it is given then counts.
        self._share: set[int] = set()
        self.smallest_share = PARTITIONS
        self._is_eager = config.get("group.protocol") == "classic"
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._share.update(each.partition for each in partitions)
        self.smallest_share = min(self.smallest_share, len(self._share))

    def _given_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._share.difference_update(each.partition for each in partitions)
        if not self._is_eager:
            self.smallest_share = min(self.smallest_share, len(self._share))

    def _run(self) -> None:
        while not self._is_done.is_set():
            self.reading.poll()

    def start(self, topic: str) -> None:
        """Be alone in the group first."""
        self.reading.until_shared(topic, [PARTITIONS])
        self.smallest_share = PARTITIONS
        self._thread.start()

    def close(self) -> None:
        self._is_done.set()
        if self._thread.is_alive():
            self._thread.join()
        self.consumer.close()


@contextmanager
def member(bootstrap: str, group: str, topic: str, **config: Any) -> Iterator[Member]:
    one = Member(bootstrap, group, topic, **config)
    try:
        one.start(topic)
        yield one
    finally:
        one.close()


def consume(
    java: JavaTools, bootstrap: str, group: str, topic: str, protocol: str, count: int
) -> list[str]:
    """What Kafka's console consumer reads as a member that leaves after so many records."""
    return java.check(
        "kafka-console-consumer",
        "--bootstrap-server", bootstrap,
        "--topic", topic,
        "--group", group,
        "--max-messages", count,
        "--timeout-ms", 60_000,
        "--command-property", f"group.protocol={protocol}",
        "--command-property", "auto.offset.reset=earliest",
    ).lines  # fmt: skip


@KINDS
def test_consumers_and_the_groups_tool(
    java: JavaTools, trio: str, trio_topics: TopicMaker, protocol: str
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("java")
    server = ("--bootstrap-server", trio)
    one_group = (*server, "--group", group)
    write_numbers(trio, topic, range(COUNT), PARTITIONS)
    expected = [f"{number:06d}" for number in range(COUNT)]
    assert sorted(consume(java, trio, group, topic, protocol, COUNT)) == expected

    def offsets(*arguments: object) -> dict[int, str]:
        """Partition → committed offset, as the tool prints it."""
        told = java.check("kafka-consumer-groups", *one_group, *arguments).output
        return {
            int(found[2]): found[3]
            for found in re.finditer(
                rf"^({re.escape(group)}\s+)?{topic}\s+(\d+)\s+(\S+)", told, re.MULTILINE
            )
        }

    everything = dict.fromkeys(range(PARTITIONS), str(COUNT // PARTITIONS))
    assert offsets("--describe") == everything
    state = java.check("kafka-consumer-groups", *one_group, "--describe", "--state").output
    assert re.search(r"Empty\s+0\b", state)
    listed = java.check("kafka-consumer-groups", *server, "--list", "--state", "Empty").output
    assert group in listed
    assert re.search(
        rf"{group}\s+{protocol}\s+consumer", java.check("kafka-groups", *server, "--list").output,
        re.IGNORECASE,
    )  # fmt: skip
    reset = ("--reset-offsets", "--topic", f"{topic}:1,2", "--to-offset", 10)
    assert offsets(*reset, "--execute") == {1: "10", 2: "10"}
    assert offsets("--describe") == {**everything, 1: "10", 2: "10"}
    again = consume(java, trio, group, topic, protocol, 2 * (COUNT // PARTITIONS - 10))
    assert sorted(again) == sorted(
        f"{number:06d}" for number in range(40, COUNT) if number % PARTITIONS in (1, 2)
    )
    java.check("kafka-consumer-groups", *one_group, "--delete-offsets", "--topic", topic)
    assert offsets("--describe") == {}
    with member(trio, group, topic, **{"group.protocol": protocol}):
        members = java.check("kafka-consumer-groups", *one_group, "--describe", "--members")
        assert re.search(rf"rdkafka.*\s{PARTITIONS}\s*$", members.output, re.MULTILINE)
        refused = java.run("kafka-consumer-groups", *one_group, "--delete")
        assert "GroupNotEmptyException" in refused.output + refused.errors
    java.check("kafka-consumer-groups", *one_group, "--delete")
    assert group not in java.check("kafka-consumer-groups", *server, "--list").output


@pytest.mark.parametrize(("there", "joins"), [("classic", "consumer"), ("consumer", "classic")])
def test_a_group_of_both_protocols(
    java: JavaTools, trio: str, trio_topics: TopicMaker, there: str, joins: str
) -> None:
    """Kafka's client joins librdkafka's group with the other protocol, gets a share, and leaves."""
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("java")
    one_group = ("--bootstrap-server", trio, "--group", group)
    with member(trio, group, topic, **{"group.protocol": there}) as one:
        write_numbers(trio, topic, range(COUNT), PARTITIONS)
        # Nothing is committed by the other: what moves is read from its beginning.
        read = consume(java, trio, group, topic, joins, COUNT // PARTITIONS)
        assert len(set(read)) == COUNT // PARTITIONS
        assert one.smallest_share < PARTITIONS

        def is_stable() -> bool:
            described = java.check("kafka-consumer-groups", *one_group, "--describe", "--state")
            return re.search(r"Stable\s+1\b", described.output) is not None

        until(is_stable, what="the group has settled with the one that is left")


@KINDS
def test_the_consumer_perf_test(
    java: JavaTools, trio: str, trio_topics: TopicMaker, protocol: str
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    write_numbers(trio, topic, range(5 * COUNT), PARTITIONS)
    figures = java.check(
        "kafka-consumer-perf-test",
        "--bootstrap-server", trio,
        "--topic", topic,
        "--num-records", 5 * COUNT,
        "--group", fresh_name("perf"),
        "--timeout", 30_000,
        "--command-property", f"group.protocol={protocol}",
        "--hide-header",
    )  # fmt: skip
    assert int(figures.lines[-1].split(",")[4]) == 5 * COUNT
